{{- /* The settings of `epochal up --kubernetes`. */ -}}
{{- define "epochal.kubernetesSettings" -}}
{{- $kubernetes := .Values.kubernetes -}}
{{- $namespaces := dict -}}
{{- range $kubernetes.projects -}}{{- $_ := set $namespaces .project .namespace -}}{{- end -}}
{{- dict
  "namespaces" $namespaces
  "own_namespace" .Release.Namespace
  "image" ($kubernetes.image | default (include "epochal.image" .))
  "images" $kubernetes.images
  "pull_policy" .Values.image.pullPolicy
  "service_account" $kubernetes.driver.serviceAccount
  "executor_service_account" $kubernetes.executor.serviceAccount
  "builder_service_account" $kubernetes.builder.serviceAccount
  "builder_cpu" $kubernetes.builder.cpu
  "builder_memory" $kubernetes.builder.memory
  "spare_builders" (int $kubernetes.builder.spares)
  "spare_drivers" (int $kubernetes.driver.spares)
  "cpu" $kubernetes.driver.cpu
  "memory" $kubernetes.driver.memory
  "template" $kubernetes.driver.template
  "executor_template" $kubernetes.executor.template
  "store_secret" (.Values.store.existingSecret | default nil)
  "store_variables" .Values.store.env
  "authority" (.Values.internal.tls.authorityConfigMap | default nil)
  "token_seconds" (int $kubernetes.tokenSeconds)
  "start_seconds" (int $kubernetes.startSeconds)
  "grace_seconds" (int $kubernetes.graceSeconds)
| toPrettyJson -}}
{{- end }}
