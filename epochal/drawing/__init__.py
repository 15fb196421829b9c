"""Drawings for terminals and notebooks: layouts, and SVG and HTML without scripts, style sheets or external resources.

Plain Python. The modules receive plain data and know nothing of pipelines, answers or terminals. Colours follow the
text colour of the page (``currentColor``), so that drawings fit light and dark notebooks.
"""
