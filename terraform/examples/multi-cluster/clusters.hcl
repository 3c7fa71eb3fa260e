# Settings of every cluster. The SSM parameters that Terraform writes contain the list of clusters. Outrigger
# reads the API endpoints from EKS.

cluster "fleet" {
  for_each        = local.clusters
  adopt           = try(each.value.adopt, null)
  disable_dry_run = each.value.disable_dry_run
  mode            = each.value.mode
  region          = each.value.region
  role_arn        = try(each.value.role_arn, null)
  tags            = each.value.tags
  zonal_shift     = each.value.zonal_shift
  eks { name = each.value.eks_name }
  interruption { queue = each.value.queue }
  leader_election { lease = "kube-system/${each.value.lease_name}" }
}
