"""Which images applications may run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from epochal.errors import EnvironmentProblem
from epochal.service.domain.kubernetes.settings import KubernetesSettings

IMAGE = "spark.kubernetes.container.image"
DRIVER_IMAGE = "spark.kubernetes.driver.container.image"
EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"


def driver_image(spark: Mapping[str, str], settings: KubernetesSettings) -> str:
    """Raises ``EnvironmentProblem`` for one that is not allowed."""
    return _allowed(spark.get(DRIVER_IMAGE) or spark.get(IMAGE) or settings.image, settings)


def executor_image(spark: Mapping[str, str], settings: KubernetesSettings) -> str:
    """Raises ``EnvironmentProblem`` for one that is not allowed."""
    return _allowed(spark.get(EXECUTOR_IMAGE) or spark.get(IMAGE) or settings.image, settings)


def _allowed(image: str, settings: KubernetesSettings) -> str:
    if any(_pattern(allowed).fullmatch(image) for allowed in (settings.image, *settings.images)):
        return image
    allowed = ", ".join((settings.image, *settings.images))
    raise EnvironmentProblem(
        f"The image {image!r} is not among those that applications may run: {allowed}. Choose one of them in the "
        "application's configuration, or have an administrator add it to `images`."
    )


def _pattern(allowed: str) -> re.Pattern[str]:
    """``*`` stands for characters of one part of a name, so that no other registry or folder is meant by it."""
    return re.compile("[^/]*".join(map(re.escape, allowed.split("*"))))
