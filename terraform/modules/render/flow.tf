# Priority of the daemon's requests in the API server. Requests of a user without a FlowSchema compete with
# every kubectl: the daemon would be slowest when the cluster is busiest.

locals {
  flow_subjects = [{ kind = "User", user = { name = var.user } }]

  # Precedence before `global-default` (9900), and after the FlowSchemas of Kubernetes components.
  flow_schemas = [
    {
      apiVersion = "flowcontrol.apiserver.k8s.io/v1"
      kind       = "FlowSchema"
      metadata   = { name = "outrigger" }
      spec = {
        distinguisherMethod        = { type = "ByUser" }
        matchingPrecedence         = 910
        priorityLevelConfiguration = { name = "workload-high" }
        rules = [{
          subjects = local.flow_subjects
          resourceRules = [{
            apiGroups    = ["*"]
            resources    = ["*"]
            verbs        = ["*"]
            clusterScope = true
            namespaces   = ["*"]
          }]
          nonResourceRules = [{ nonResourceURLs = ["/version"], verbs = ["get"] }]
        }]
      }
    },
    {
      apiVersion = "flowcontrol.apiserver.k8s.io/v1"
      kind       = "FlowSchema"
      metadata   = { name = "outrigger-leases" }
      spec = {
        distinguisherMethod        = { type = "ByUser" }
        matchingPrecedence         = 210
        priorityLevelConfiguration = { name = "leader-election" }
        rules = [{
          subjects = local.flow_subjects
          resourceRules = [{
            apiGroups  = ["coordination.k8s.io"]
            resources  = ["leases"]
            verbs      = ["get", "create", "patch"]
            namespaces = ["kube-system"]
          }]
        }]
      }
    },
  ]
}
