{{- /* Refusals of contradictory values, with the solution. */ -}}
{{- define "epochal.refusals" -}}
{{- $values := .Values -}}
{{- $postgresql := eq (include "epochal.postgresql" .) "true" -}}
{{- if and $values.database.existingSecret $values.database.url -}}
{{- fail "database.existingSecret and database.url both name the catalog; give one of them." -}}
{{- end -}}
{{- if and (not $postgresql) (gt (int $values.control.replicas) 1) -}}
{{- fail "control.replicas is above 1, but SQLite is for one control plane: name a PostgreSQL in database.existingSecret." -}}
{{- end -}}
{{- if and $postgresql (not $values.store.url) -}}
{{- fail "store.url is required with PostgreSQL, because pods have no persistent volume then. Give a URL that all pods reach." -}}
{{- end -}}
{{- if and $values.kubernetes.enabled (not $values.store.url) -}}
{{- fail "store.url is required with kubernetes.enabled: drivers run in other namespaces and cannot mount the control plane's volume." -}}
{{- end -}}
{{- range $name, $_ := $values.store.env -}}
{{- if regexMatch (printf "(%s)$" (include "epochal.secretEndings" $)) $name -}}
{{- fail (printf "store.env: %s is a secret, which users that can read pods would see. Put it into the Secret of store.existingSecret." $name) -}}
{{- end -}}
{{- end -}}
{{- if and (not $postgresql) (or (gt (int $values.query.replicas) 0) $values.query.autoscaling.enabled) -}}
{{- fail "query.replicas needs PostgreSQL: query nodes cannot read a SQLite catalog on another pod's volume. Name a PostgreSQL in database.existingSecret." -}}
{{- end -}}
{{- if and $values.query.autoscaling.enabled (gt (int $values.query.autoscaling.minReplicas) (int $values.query.autoscaling.maxReplicas)) -}}
{{- fail "query.autoscaling.minReplicas is above query.autoscaling.maxReplicas." -}}
{{- end -}}
{{- if and $values.internal.tls.secret (eq $values.internal.advertise "pod") -}}
{{- fail "internal.advertise is pod, but the certificate of internal.tls.secret cannot name the addresses of pods. Leave internal.advertise empty." -}}
{{- end -}}
{{- if and $values.internal.tls.authorityConfigMap (not $values.internal.tls.secret) -}}
{{- fail "internal.tls.authorityConfigMap is set, but internal.tls.secret names no certificate; set both." -}}
{{- end -}}
{{- if and $values.tls.authorityKey (not $values.tls.secret) -}}
{{- fail "tls.authorityKey is a key of tls.secret, which is not set." -}}
{{- end -}}
{{- if $values.ingress.enabled -}}
{{- if not $values.ingress.host -}}
{{- fail "ingress.host is required with ingress.enabled." -}}
{{- end -}}
{{- if not (or $values.ingress.tlsSecret $values.ingress.tlsElsewhere) -}}
{{- fail "ingress.tlsSecret is required, because requests contain tokens. If TLS ends before the Ingress, set ingress.tlsElsewhere." -}}
{{- end -}}
{{- if and $values.ingress.queryHost (not (eq (include "epochal.queryNodes" .) "true")) -}}
{{- fail "ingress.queryHost requires query nodes, but there are none: set query.replicas." -}}
{{- end -}}
{{- end -}}
{{- if and $values.metrics.serviceMonitor.enabled (not $values.metrics.serviceMonitor.token.existingSecret) -}}
{{- fail "metrics.serviceMonitor.token.existingSecret is required: /metrics requires a token of the role viewer. Create one with `epochal tokens create metrics --role viewer`." -}}
{{- end -}}
{{- if $values.kubernetes.enabled -}}
{{- if not (has "default" (include "epochal.projectNames" . | fromJsonArray)) -}}
{{- fail "kubernetes.projects has no project default, which every installation requires." -}}
{{- end -}}
{{- $seen := dict -}}
{{- range $values.kubernetes.projects -}}
{{- if eq .namespace $.Release.Namespace -}}
{{- fail (printf "kubernetes.projects: project %s would run in %s, the control plane's own namespace, where drivers could read its Secrets by starting pods. Give the project another namespace." .project .namespace) -}}
{{- end -}}
{{- if hasPrefix "kube-" .namespace -}}
{{- fail (printf "kubernetes.projects: %s is a namespace of the cluster itself. Give project %s another one." .namespace .project) -}}
{{- end -}}
{{- if hasKey $seen .namespace -}}
{{- fail (printf "kubernetes.projects: %s and %s share the namespace %s and would not be isolated. Give each its own." (get $seen .namespace) .project .namespace) -}}
{{- end -}}
{{- if has .project (values $seen) -}}
{{- fail (printf "kubernetes.projects: project %s is listed twice." .project) -}}
{{- end -}}
{{- $_ := set $seen .namespace .project -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "epochal.projectNames" -}}
{{- $names := list -}}
{{- range .Values.kubernetes.projects -}}{{- $names = append $names .project -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{- /* "true" if query nodes are enabled, otherwise empty. */ -}}
{{- define "epochal.queryNodes" -}}
{{- if or (gt (int .Values.query.replicas) 0) .Values.query.autoscaling.enabled }}true{{ end }}
{{- end }}
