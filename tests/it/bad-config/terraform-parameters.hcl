# untold /away=AccessDeniedException: not allowed
# parameter /broken={"clusters":
# parameter /list=[1]
data "terraform_output" "no_mock" {
  ssm_parameter = "/nobody/asks"
}

data "terraform_output" "away" {
  ssm_parameter = "/away"
  mock          = {}
}

data "terraform_output" "broken" {
  ssm_parameter = "/broken"
}

data "terraform_output" "list" {
  ssm_parameter = "/list"
}

data "terraform_output" "both" {
  ssm_parameter = "/list"
  file          = "platform.json"
}

data "terraform_output" "odd" {
  file    = "platform.json"
  refresh = "5m"
}

data "terraform_output" "no_map" {
  ssm_parameter = "/list"
  mock          = "demo"
}

data "terraform_output" "hasty" {
  ssm_parameter = "/list"
  refresh       = "5s"
  mock          = { x = var.nothing }
}

cluster "demo" {
  simulated {}
}
