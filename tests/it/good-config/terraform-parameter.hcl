# parameter /outrigger/prod/outputs={"clusters": {"eu": {"region": "eu-west-1"}}}
# Clusters that Terraform has put into a parameter; its mock is not used.
data "terraform_output" "platform" {
  ssm_parameter = "/outrigger/${var.environment}/outputs"
  region        = "eu-central-1"
  refresh       = "10m"
  mock          = { clusters = { demo = { region = "us-west-2" } } }
}

variable "environment" {
  type    = string
  default = "prod"
}

cluster "fleet" {
  for_each = data.terraform_output.platform.clusters
  name     = each.key
  region   = each.value.region
  simulated {}
}
