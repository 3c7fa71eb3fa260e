//! The EC2 provider, held to the checks over the wire: the real SDK against the AWS of the tests.
//! It must not know what is checked.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;

use super::checks::{Subject, check};
use crate::engine::event::Event;
use crate::model::hash::node_class_hash;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::shell::aws::account::{Account, AccountKey, Accounts};
use crate::shell::aws::idle::api;
use crate::shell::aws::keeper::Keepers;
use crate::shell::aws::moto::{Aws, REGION};
use crate::shell::aws::provider::Ec2;
use crate::shell::provider::Provider;

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
    let Some(mut aws) = Aws::start_or_skip("shell::conformance::ec2::ec2_conforms") else {
        return;
    };
    aws.ask(&json!({"do": "outage", "type": "m5.large", "zone": "us-west-2c"}));
    let own = Arc::new(aws.cluster("conformance", "prod"));
    let account = Account::of(AccountKey::of(&own), aws.config().await);
    let keepers = Keepers::of_accounts(Accounts::with(account));
    let keeper = keepers.of(&own).await;
    let (events, mut inbox) = mpsc::channel(64);
    let prod: Arc<dyn Provider> = Arc::new(Ec2::new(own.clone(), api(), keeper.clone()));
    prod.attend(own.clone(), Some(events)).await;
    // Once for what is not known yet, then for what AWS has said.
    for _ in 0..2 {
        while !matches!(inbox.recv().await, Some(Event::ClassesChanged(_))) {}
    }
    tokio::spawn(async move { while inbox.recv().await.is_some() {} });
    let open = |installation: &str, name: &str| -> Arc<dyn Provider> {
        if (installation, name) == ("conformance", "prod") {
            return prod.clone();
        }
        let other = Arc::new(aws.cluster(installation, name));
        Arc::new(Ec2::new(other, api(), keeper.clone()))
    };
    let subject = Subject {
        open: &open,
        sold: [key("m5.large", "a"), key("m5.large", "b")],
        sold_out: key("m5.large", "c"),
        unknown: key("m99.large", "a"),
        nobody: "i-0123456789abcdef0".into(),
        node_class_hash: node_class_hash(own.node_classes.first()),
        lag: Duration::from_secs(5),
        // Only the daemon's rights keep it from that.
        guards_ends: false,
    };
    check(&subject).await;
}
