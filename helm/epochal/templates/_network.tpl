{{- define "epochal.policyTypes" -}}
[Ingress{{ if or .Values.networkPolicy.egress.restricted .Values.networkPolicy.egress.closedCidrs }}, Egress{{ end }}]
{{- end }}

{{- /* Allowed callers of a public port. */ -}}
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

{{- /* All addresses except closedCidrs. Pods are selected in addition, because some networks do not match them by address, and
DNS, because a cache on the node may answer at a link-local address. */ -}}
{{- define "epochal.anywhereElse" -}}
{{- $closed := dict "4" list "6" list }}
{{- range .Values.networkPolicy.egress.closedCidrs }}
{{- $family := ternary "6" "4" (contains ":" .) }}
{{- $closed = merge (dict $family (append (get $closed $family) .)) $closed }}
{{- end }}
{{- include "epochal.names" . }}
- to:
    - namespaceSelector: {}
    - ipBlock:
        cidr: 0.0.0.0/0
        {{- with get $closed "4" }}
        except: {{- toYaml . | nindent 10 }}
        {{- end }}
    - ipBlock:
        cidr: ::/0
        {{- with get $closed "6" }}
        except: {{- toYaml . | nindent 10 }}
        {{- end }}
{{- with .Values.networkPolicy.egress.rules }}
{{ toYaml . }}
{{- end }}
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

{{- /* Spark sets the label spark-role of its executors. */ -}}
{{- define "epochal.executorLabels" -}}
app.kubernetes.io/managed-by: epochal
spark-role: executor
{{- end }}
