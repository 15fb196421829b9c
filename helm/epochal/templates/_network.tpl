{{- define "epochal.policyTypes" -}}
[Ingress{{ if .Values.networkPolicy.egress.restricted }}, Egress{{ end }}]
{{- end }}

{{- /* Who may call a public port. */ -}}
{{- define "epochal.clients" -}}
- ports:
    - {protocol: TCP, port: http}
  {{- with .Values.networkPolicy.clients }}
  from:
    {{- toYaml . | nindent 4 }}
    - podSelector:
        matchLabels: {{- include "epochal.componentSelector" (list $ "test") | nindent 10 }}
  {{- end }}
{{- end }}

{{- /* The cluster's DNS. */ -}}
{{- define "epochal.names" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}

{{- define "epochal.apiServer" -}}
- to:
    {{- range .Values.networkPolicy.egress.apiServerCidrs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range .Values.networkPolicy.egress.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}

{{- define "epochal.driverLabels" -}}
app.kubernetes.io/managed-by: epochal
app.kubernetes.io/component: driver
{{- end }}

{{- define "epochal.builderLabels" -}}
app.kubernetes.io/managed-by: epochal
app.kubernetes.io/component: builder
{{- end }}

{{- /* Spark says the role of its executors. */ -}}
{{- define "epochal.executorLabels" -}}
app.kubernetes.io/managed-by: epochal
spark-role: executor
{{- end }}
