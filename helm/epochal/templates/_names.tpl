{{- define "epochal.name" -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- $name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "epochal.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "epochal.labels" -}}
{{ include "epochal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "epochal.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "epochal.name" .) }}
{{- end }}

{{- define "epochal.claim" -}}
{{ .Values.persistence.existingClaim | default (include "epochal.name" .) }}
{{- end }}

{{- define "epochal.image" -}}
{{- $repository := required "image.repository is required: build helm/Dockerfile and push it" .Values.image.repository -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{- define "epochal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
