## Which clusters Outrigger looks after, and with what. All files of this folder are read together.
##
## Nothing here is in force: take one `#` away from the lines that are wanted, and change what they
## say. More is in /usr/share/doc/outrigger/examples, and every argument in docs/CONFIGURATION.md
## beside it. Then: `outrigger validate /etc/outrigger.d`, and `systemctl start outrigger`.

## The same on all hosts; only its instances are ever touched.
#outrigger { installation = "example" }

## Without `mode = "manage"` a cluster is only observed: plans are made, nothing is touched.
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
