# secret token=s3cr3t
# What is sensitive is not shown.
data "terraform_output" "hidden" { file = "${secret("token")}.json" }
