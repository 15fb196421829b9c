{{- define "epochal.policyTypes" -}}
[Ingress{{ if .Values.networkPolicy.egress.restricted }}, Egress{{ end }}]
{{- end }}

{{- /* Of pods that run code of authors. */ -}}
{{- define "epochal.authorPolicyTypes" -}}
[Ingress{{ if or .Values.networkPolicy.egress.restricted (not .Values.networkPolicy.egress.linkLocal) }}, Egress{{ end }}]
{{- end }}

{{- /* Everything but link-local addresses and the metadata services of clouds. Pods are named apart, since some networks
     count no pod among the addresses of an ipBlock. DNS is named apart, since a cache on the node has a link-local one. */ -}}
{{- define "epochal.notLinkLocal" -}}
{{- include "epochal.names" . }}
- to:
    - namespaceSelector: {}
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16, 100.100.100.200/32, 168.63.129.16/32, 192.0.0.192/32]}
    - ipBlock: {cidr: "::/0", except: ["fe80::/10", "fd00:42::42/128", "fd00:ec2::/32", "fd20:ce::254/128"]}
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
