# Independent of the environment: Terraform copies this file unchanged.

node_class "general" {
  for_each         = local.clusters
  clusters         = [each.key]
  instance_profile = each.value.instance_profile
  ami { alias = "al2023@latest" }
  subnet { tags = { "outrigger.dev/discovery/${each.key}" = "true" } }
  security_group { tags = { "outrigger.dev/discovery/${each.key}" = "true" } }
}

pool "general" {
  node_class = node_class.general
  limits     = { nodes = 100 }
  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
  require "karpenter.k8s.aws/instance-category" { in = ["c", "m", "r"] }
}
