# parameter /outputs={"clusters": {"eu": {"region": 5}}, "count": "many"}
data "terraform_output" "platform" {
  ssm_parameter = "/outputs"
  mock          = { clusters = { demo = { region = "us-west-2" } } }
}

cluster "fleet" {
  for_each = data.terraform_output.platform.clusters
  name     = each.key
  region   = each.value.endpoint
  simulated {}
}
