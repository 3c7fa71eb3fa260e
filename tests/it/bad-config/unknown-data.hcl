# Another type of data, one block too short, and one too long.
data "aws_vpc" "main" {}
data "terraform_output" {}
data {}
