cluster "demo" {
  simulated {}
}

overlay "savings" {
  price_adjustment = "-28%"
}
