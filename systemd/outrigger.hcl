## The clusters of Outrigger, with their pools. Outrigger reads all *.hcl files in this directory.
##
## Every line here is commented out: remove one `#` from the lines that you need, and change their
## values. /usr/share/doc/outrigger/examples has further examples, and docs/CONFIGURATION.md in
## /usr/share/doc/outrigger describes every argument. Then run `outrigger validate /etc/outrigger.d` and
## `systemctl start outrigger`.

## The name must be the same on all hosts. Outrigger changes only instances with this name.
#outrigger { installation = "example" }

## Without `mode = "manage"` Outrigger only observes the cluster: it plans and changes nothing.
#cluster "prod" {
#  region = "eu-central-1"
#  eks {}
#}

#node_class "general" {
#  role = "outrigger-node"
#  ami { alias = "al2023@latest" }
#  subnet { tags = { "karpenter.sh/discovery" = "prod" } }
#  security_group { tags = { "karpenter.sh/discovery" = "prod" } }
#}

#pool "general" {
#  node_class = node_class.general
#  limits     = { cpu = 100 }
#  require "karpenter.sh/capacity-type" { in = ["spot", "on-demand"] }
#  require "karpenter.k8s.aws/instance-category" { in = ["c", "m", "r"] }
#}
