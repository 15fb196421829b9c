{{- define "epochal.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- .Values.fullnameOverride | default $name | trunc 48 | trimSuffix "-" }}
{{- end }}

{{- define "epochal.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* (list root component) */ -}}
{{- define "epochal.componentSelector" -}}
{{ include "epochal.selector" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "epochal.labels" -}}
{{ include "epochal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Labels and annotations of an object: (list root component additional-annotations) */ -}}
{{- define "epochal.metadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "epochal.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
{{- with merge (dict) (index . 2) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "epochal.controlAccount" -}}
{{ .Values.serviceAccounts.control.name | default (include "epochal.name" .) }}
{{- end }}

{{- define "epochal.queryAccount" -}}
{{ .Values.serviceAccounts.query.name | default (printf "%s-query" (include "epochal.name" .)) }}
{{- end }}

{{- define "epochal.claim" -}}
{{ .Values.persistence.existingClaim | default (include "epochal.name" .) }}
{{- end }}

{{- define "epochal.databaseSecret" -}}
{{ .Values.database.existingSecret | default (printf "%s-database" (include "epochal.name" .)) }}
{{- end }}

{{- define "epochal.tokenSecret" -}}
{{ .Values.adminToken.existingSecret | default (printf "%s-admin" (include "epochal.name" .)) }}
{{- end }}

{{- /* "true" if the catalog is PostgreSQL, otherwise empty. */ -}}
{{- define "epochal.postgresql" -}}
{{- if or .Values.database.existingSecret .Values.database.url }}true{{ end }}
{{- end }}

{{- define "epochal.image" -}}
{{- $repository := required "image.repository is required: build helm/Dockerfile and push it" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* Scheme of the public port. */ -}}
{{- define "epochal.scheme" -}}
{{ ternary "https" "http" (ne .Values.tls.secret "") }}
{{- end }}

{{- define "epochal.publicUrl" -}}
{{- if .Values.control.publicUrl -}}
{{ .Values.control.publicUrl }}
{{- else if .Values.ingress.enabled -}}
https://{{ .Values.ingress.host }}
{{- else -}}
{{ include "epochal.scheme" . }}://{{ include "epochal.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}
{{- end }}

{{- define "epochal.internalUrl" -}}
{{- $encrypted := ne .Values.internal.tls.secret "" -}}
{{- /* Certificates cannot name the addresses of pods. */ -}}
{{- $usual := ternary "pod" "service" (and (eq (include "epochal.postgresql" .) "true") (not $encrypted)) -}}
{{- if eq (.Values.internal.advertise | default $usual) "pod" -}}
http://$(POD_IP):8766
{{- else -}}
{{ ternary "https" "http" $encrypted }}://{{ include "epochal.name" . }}-internal.{{ .Release.Namespace }}.svc:{{ .Values.internal.port }}
{{- end }}
{{- end }}
