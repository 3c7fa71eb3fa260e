//! The conformance checks of the EC2 provider: the real SDK against the AWS of the tests.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::types::{InstanceType, ResourceType};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc;

use super::checks::{Subject, check};
use crate::engine::command::Command;
use crate::engine::event::Event;
use crate::model::claim::{TAG_CLUSTER, TAG_EKS, TAG_OWNED, TAG_POOL};
use crate::model::cluster::Cluster;
use crate::model::id::InstanceId;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::Labels;
use crate::model::pool::Pool;
use crate::model::template_hash::{node_class_hash, record_in};
use crate::outbound::fence;
use crate::provider::{Adoption, CommandResult, FailureKind, Launch};
use crate::providers::aws::clients::{AccountKey, Accounts, AwsClients};
use crate::providers::aws::launch_templates::tag_specification;
use crate::providers::aws::provider::Ec2;
use crate::providers::aws::region::Regions;
use crate::providers::aws::tests::idle_calls::api;
use crate::providers::aws::tests::moto::{Aws, REGION};
use crate::providers::interface::Provider;

fn key(instance_type: &str, zone: &str) -> OfferingKey {
    OfferingKey {
        instance_type: instance_type.into(),
        zone: format!("{REGION}{zone}").into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
    }
}

#[tokio::test]
async fn ec2_conforms() {
    let Some(mut aws) = Aws::start_or_skip("providers::conformance::ec2::ec2_conforms") else {
        return;
    };
    aws.send_command(&json!({"do": "outage", "type": "m5.large", "zone": "us-west-2c"}));
    let cluster = Arc::new(aws.cluster("conformance", "prod"));
    let account = AwsClients::from_config(AccountKey::from_cluster(&cluster), aws.config().await);
    let regions = Regions::of_accounts(Accounts::from_clients(account));
    let region_handle = regions.handle_for(&cluster).await;
    let (events, mut inbox) = mpsc::channel(64);
    let prod: Arc<dyn Provider> = Arc::new(Ec2::new(cluster.clone(), api(), region_handle.clone()));
    prod.register_cluster(cluster.clone(), Some(events)).await;
    // The first event has no results yet, the second has the results of AWS.
    for _ in 0..2 {
        while !matches!(inbox.recv().await, Some(Event::ClassesChanged(_))) {}
    }
    tokio::spawn(async move { while inbox.recv().await.is_some() {} });
    let open = |installation: &str, name: &str| -> Arc<dyn Provider> {
        if (installation, name) == ("conformance", "prod") {
            return prod.clone();
        }
        let other = Arc::new(aws.cluster(installation, name));
        Arc::new(Ec2::new(other, api(), region_handle.clone()))
    };
    let subject = Subject {
        open: &open,
        sold: [key("m5.large", "a"), key("m5.large", "b")],
        sold_out: key("m5.large", "c"),
        unknown: key("m99.large", "a"),
        unknown_instance: "i-0123456789abcdef0".into(),
        node_class_hash: node_class_hash(cluster.node_classes.first()),
        lag: Duration::from_secs(5),
        // Only IAM permissions prevent a termination of another cluster's instance.
        guards_terminations: false,
    };
    check(&subject).await;
}

/// A Karpenter instance of this pool in the EKS cluster with this name.
async fn karpenters(account: &AwsClients, image: &str, eks: &str, pool: &str) -> InstanceId {
    let labels = Labels::from([
        (format!("{TAG_OWNED}{eks}"), "owned".to_owned()),
        (TAG_EKS.to_owned(), eks.to_owned()),
        (TAG_POOL.to_owned(), pool.to_owned()),
    ]);
    let tags = tag_specification(ResourceType::Instance, &labels);
    let run = account.ec2.run_instances().image_id(image).min_count(1).max_count(1);
    let run = run.instance_type(InstanceType::M5Large).tag_specifications(tags);
    let made = fence::run_unfenced(run.send()).await.expect("an instance");
    let id = made.instances().first().and_then(|instance| instance.instance_id());
    id.expect("its id").into()
}

async fn adopt(
    provider: &Ec2,
    cluster: &Cluster,
    claim: &str,
    instance: &InstanceId,
) -> CommandResult {
    let (pool, reason) = (Pool::new("general"), "adopted");
    let claim = record_in(cluster, &pool, claim, Timestamp::UNIX_EPOCH, reason, reason);
    let adoption = Adoption {
        tags: Launch::tags_of(cluster, &claim),
        claim,
        instance: instance.clone(),
        offering: key("m5.large", "a"),
    };
    fence::run_unfenced(provider.execute(Command::Adopt(Box::new(adoption)))).await
}

#[tokio::test]
async fn only_karpenter_instances_of_the_cluster_and_pool_are_adopted() {
    let name =
        "providers::conformance::ec2::only_karpenter_instances_of_the_cluster_and_pool_are_adopted";
    let Some(aws) = Aws::start_or_skip(name) else {
        return;
    };
    let cluster = Arc::new(aws.cluster("adoption", "prod"));
    let key_of_account = AccountKey::from_cluster(&cluster);
    let direct = AwsClients::from_config(key_of_account.clone(), aws.config().await);
    let image = direct.ec2.describe_images().send().await.expect("images");
    let image = image.images().first().and_then(|image| image.image_id());
    let image = image.expect("an image").to_owned();
    let eks = cluster.eks.as_ref().and_then(|eks| eks.name.clone());
    let eks = eks.unwrap_or_else(|| cluster.name.to_string());
    let theirs = karpenters(&direct, &image, &eks, "general").await;
    let of_other = karpenters(&direct, &image, "another", "general").await;
    let of_pool = karpenters(&direct, &image, &eks, "special").await;
    let account = AwsClients::from_config(key_of_account, aws.config().await);
    let regions = Regions::of_accounts(Accounts::from_clients(account));
    let region_handle = regions.handle_for(&cluster).await;
    let prod = Ec2::new(cluster.clone(), api(), region_handle);
    let unknown = "i-0123456789abcdef0".into();
    for (claim, instance, expect) in [
        ("c-1", &of_other, FailureKind::Denied),
        ("c-2", &of_pool, FailureKind::Denied),
        ("c-3", &unknown, FailureKind::Gone),
    ] {
        let answer = adopt(&prod, &cluster, claim, instance).await;
        let is_expected = matches!(&answer, CommandResult::Failed { kind, .. } if *kind == expect);
        assert!(is_expected, "{claim}: {answer:?}");
    }
    // A retry after a lost response changes nothing.
    for _ in 0..2 {
        let answer = adopt(&prod, &cluster, "c-4", &theirs).await;
        assert_eq!(answer, CommandResult::Done);
    }
    let CommandResult::Instances(all) = prod.execute(Command::ListInstances).await else {
        panic!("instances are listed");
    };
    let ours: Vec<_> =
        all.iter().map(|instance| (&instance.id, instance.tags.get(TAG_CLUSTER))).collect();
    assert_eq!(ours, [(&theirs, Some(&cluster.name.to_string()))]);
}
