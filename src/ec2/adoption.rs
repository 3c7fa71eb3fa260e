//! Decides by the tags of an instance of another autoscaler whether it may be adopted.

use thiserror::Error;

use crate::model::claim::{TAG_CLUSTER, TAG_EKS, TAG_INSTALLATION, TAG_OWNED, TAG_POOL};
use crate::model::labels::Labels;

/// Checks that an instance may be adopted: its tags must name the same cluster and pool in
/// Karpenter's format, and must not name a different installation. Otherwise returns the reason.
/// Source: spec/aws.md §5.5 (Karpenter's tags) and §13.5.
pub fn check_adoptable(current: &Labels, added: &Labels) -> Result<(), AdoptionError> {
    let [pool, name, installation] = [TAG_POOL, TAG_CLUSTER, TAG_INSTALLATION]
        .map(|tag| added.get(tag).map_or("", String::as_str));
    let cluster = added.get(TAG_EKS).map_or(name, String::as_str);
    let owned = format!("{TAG_OWNED}{cluster}");
    // The shipped IAM policy depends on the last of these tags.
    for (tag, value) in [(TAG_POOL, pool), (&owned, "owned"), (TAG_EKS, cluster)] {
        if current.get(tag).map(String::as_str) != Some(value) {
            return Err(AdoptionError(format!("it has no tag {tag}={value}")));
        }
    }
    match current.get(TAG_INSTALLATION) {
        Some(other) if other != installation => {
            let text = "it belongs to a different installation";
            Err(AdoptionError(text.to_owned()))
        }
        _ => Ok(()),
    }
}

/// Why an instance must not be adopted: it lacks a tag of its pool or cluster, or has the tag of
/// another installation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct AdoptionError(String);

#[cfg(test)]
mod tests {
    use super::check_adoptable;
    use crate::model::labels::Labels;

    fn tags(pairs: &[(&str, &str)]) -> Labels {
        let owned = pairs.iter().map(|(key, value)| (*key, *value));
        owned.map(|(key, value)| (key.into(), value.into())).collect()
    }

    #[test]
    fn only_instances_of_the_same_cluster_and_pool_are_adopted() {
        let ours = ("outrigger.dev/installation", "here");
        let pool = ("karpenter.sh/nodepool", "general");
        let cluster = ("kubernetes.io/cluster/prod", "owned");
        // The configuration may name the cluster differently from EKS.
        let cluster_names = [("outrigger.dev/cluster", "one"), ("eks:eks-cluster-name", "prod")];
        let adopted_tags = tags(&[&[ours, pool][..], &cluster_names].concat());
        let check = |pairs: &[(&str, &str)]| check_adoptable(&tags(pairs), &adopted_tags);
        let eks = cluster_names[1];
        assert_eq!(check(&[pool, cluster, eks]), Ok(()));
        assert_eq!(check(&[pool, cluster, eks, ours]), Ok(()), "a repeated adoption");
        let expect_refusal = |pairs: &[(&str, &str)], what: &str| {
            let why = check(pairs).expect_err("it may not be adopted").to_string();
            assert!(why.contains(what), "{why}");
        };
        expect_refusal(&[], "karpenter.sh/nodepool=general");
        expect_refusal(&[("karpenter.sh/nodepool", "other"), cluster], "=general");
        expect_refusal(&[pool], "kubernetes.io/cluster/prod=owned");
        for other in
            [("kubernetes.io/cluster/prod", "shared"), ("kubernetes.io/cluster/one", "owned")]
        {
            expect_refusal(&[pool, other], "kubernetes.io/cluster/prod=owned");
        }
        expect_refusal(
            &[pool, cluster, eks, ("outrigger.dev/installation", "there")],
            "a different installation",
        );
        let adopted_tags = tags(&[ours, pool, cluster_names[0]]);
        expect_refusal(&[pool, cluster], "eks:eks-cluster-name=prod");
        let outside_eks =
            [pool, ("kubernetes.io/cluster/one", "owned"), ("eks:eks-cluster-name", "one")];
        assert_eq!(check_adoptable(&tags(&outside_eks), &adopted_tags), Ok(()), "outside EKS");
    }
}
