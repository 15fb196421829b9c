{{- define "epochal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "epochal.podSecurity" -}}
runAsNonRoot: true
{{- /* Values set to null are omitted. */ -}}
{{- range $name, $id := .Values.securityContext }}
{{ $name }}: {{ int64 $id }}
{{- end }}
{{- if hasKey .Values.securityContext "fsGroup" }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "epochal.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Placement of a component's pods: (list root component values-of-the-component) */ -}}
{{- define "epochal.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.topologySpread }}
topologySpreadConstraints:
  {{- range $topology := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ $topology }}
    whenUnsatisfiable: {{ $root.Values.topologySpread }}
    labelSelector:
      matchLabels: {{- include "epochal.componentSelector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* Labels and annotations of a component's pods: (list root component values-of-the-component additional-annotations) */ -}}
{{- define "epochal.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $values := index . 2 -}}
labels:
  {{- include "epochal.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
  {{- if has (index . 1) (list "control" "query") }}
  epochal.dev/serves: http
  {{- end }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (index . 3) (default (dict) $values.podAnnotations) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Variables of containers that use the catalog. */ -}}
{{- define "epochal.catalogEnvironment" -}}
- {name: HOME, value: /tmp}
- {name: EPOCHAL_LOG_FORMAT, value: {{ .Values.logFormat }}}
{{- if eq (include "epochal.postgresql" .) "true" }}
# Not an argument: every process of the node can read arguments.
- name: EPOCHAL_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "epochal.databaseSecret" . }}
      key: {{ .Values.database.key }}
{{- end }}
{{- end }}

{{- /* Variables for access to the store, without secrets. */ -}}
{{- define "epochal.storeEnvironment" -}}
{{- range $name, $value := .Values.store.env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- /* Sources of variables: those of the component, and the Secret of the store: (list root values-of-the-component) */ -}}
{{- define "epochal.environmentSources" -}}
{{- $sources := (index . 1).extraEnvFrom -}}
{{- with (index . 0).Values.store.existingSecret -}}
{{- $sources = append $sources (dict "secretRef" (dict "name" .)) -}}
{{- end -}}
{{- with $sources }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Endings of the names of variables with secrets, as in epochal/store_variables.py. */ -}}
{{- define "epochal.secretEndings" -}}
SECRET|TOKEN|PASSWORD|KEY|KEY_BASE64|SAS|ACCESS_SIGNATURE|CONNECTION_STRING|IDENTITY_HEADER|BEARER_TOKEN_BEDROCK
{{- end }}

{{- /* Variables, mounts and volumes for the public port: its certificate, and the identity provider. */ -}}
{{- define "epochal.publicEnvironment" -}}
{{- if .Values.tls.secret }}
- {name: EPOCHAL_TLS_CERTIFICATE, value: /run/secrets/epochal-tls/tls.crt}
- {name: EPOCHAL_TLS_KEY, value: /run/secrets/epochal-tls/tls.key}
{{- end }}
{{- if .Values.oidc.settings }}
- {name: EPOCHAL_OIDC_FILE, value: /etc/epochal-oidc/oidc.json}
{{- end }}
{{- end }}

{{- define "epochal.publicMounts" -}}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /run/secrets/epochal-tls, readOnly: true}
{{- end }}
{{- if .Values.oidc.settings }}
- {name: oidc, mountPath: /etc/epochal-oidc, readOnly: true}
{{- end }}
{{- end }}

{{- define "epochal.publicVolumes" -}}
{{- with .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if .Values.oidc.settings }}
- name: oidc
  configMap: {name: {{ include "epochal.name" . }}-oidc}
{{- end }}
{{- end }}

{{- /* Probes of containers with the port http. */ -}}
{{- define "epochal.probes" -}}
{{- $scheme := upper (include "epochal.scheme" .) }}
startupProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- /* Load balancers remove a terminating pod before it stops answering. */ -}}
{{- define "epochal.drain" -}}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ .drainSeconds | int | quote }}]
{{- end }}
