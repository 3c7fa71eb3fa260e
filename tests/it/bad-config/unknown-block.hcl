nodepool "general" {
  weight = 10
}
