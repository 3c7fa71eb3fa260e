# A role in two places.
outrigger { installation = "it" }

cluster "eks" {
  region   = "eu-central-1"
  role_arn = "arn:aws:iam::123456789012:role/one"
  eks {
    role_arn = "arn:aws:iam::123456789012:role/other"
  }
}
