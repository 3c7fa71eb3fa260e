//! The EC2 provider, held to the checks over the wire: the real SDK against the AWS of the tests.
//! It must not know what is checked.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::checks::{Subject, check};
use crate::engine::event::Event;
use crate::model::cluster::Cluster;
use crate::model::hash::node_class_hash;
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::node_class::Identity;
use crate::shell::aws::account::{Account, AccountKey, Accounts};
use crate::shell::aws::idle::{api, node_class};
use crate::shell::aws::keeper::Keepers;
use crate::shell::aws::provider::Ec2;
use crate::shell::provider::Provider;

const SERVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/serve");
const REGION: &str = "us-west-2";

/// The AWS of the tests; it ends with its stdin.
struct Aws {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    facts: Value,
}

impl Aws {
    /// None where the interpreter with moto is not named.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests are told by their environment"
    )]
    fn start() -> Option<Self> {
        let python = env::var("OUTRIGGER_PYTHON").ok()?;
        let mut child = Command::new(python)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut own = Self {
            commands: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().expect("its stdout")),
            child,
            facts: Value::Null,
        };
        own.facts = own.answer();
        Some(own)
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    fn ask(&mut self, command: &Value) -> Value {
        let commands = self.commands.as_mut().expect("it listens");
        writeln!(commands, "{command}").expect("it listens");
        self.answer()
    }

    fn fact(&self, name: &str) -> &str {
        self.facts[name].as_str().expect(name)
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        self.commands = None;
        drop(self.child.wait());
    }
}

fn key(instance_type: &str, zone: &str) -> OfferingKey {
    OfferingKey {
        instance_type: instance_type.into(),
        zone: format!("{REGION}{zone}").into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
    }
}

fn cluster(installation: &str, name: &str, aws: &Aws) -> Cluster {
    let identity = Identity::Profile(aws.fact("instance_profile").to_owned());
    let class = node_class("karpenter.sh/discovery", aws.fact("cluster"), identity);
    Cluster {
        installation: installation.to_owned(),
        name: name.into(),
        region: REGION.to_owned(),
        eks: Some(crate::model::cluster::Eks {
            service_cidr: Some("10.0.0.0/16".to_owned()),
            ..Default::default()
        }),
        node_classes: vec![class],
        ..Cluster::default()
    }
}

#[tokio::test]
async fn ec2_conforms() {
    let Some(mut aws) = Aws::start() else {
        println!("SKIP shell::conformance::ec2::ec2_conforms: OUTRIGGER_PYTHON names no moto");
        return;
    };
    aws.ask(&json!({"do": "outage", "type": "m5.large", "zone": "us-west-2c"}));
    let credentials = Credentials::new("test", "test", None, None, "test");
    let config = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(aws.fact("url"))
        .load()
        .await;
    let own = Arc::new(cluster("conformance", "prod", &aws));
    let account = Account::of(AccountKey::of(&own), config);
    let keepers = Keepers::of_accounts(Accounts::with(account));
    let keeper = keepers.of(&own).await;
    let (events, mut inbox) = mpsc::channel(64);
    let prod: Arc<dyn Provider> = Arc::new(Ec2::new(own.clone(), api(), keeper.clone()));
    prod.attend(own.clone(), events).await;
    // Once for what is not known yet, then for what AWS has said.
    for _ in 0..2 {
        while !matches!(inbox.recv().await, Some(Event::ClassesChanged(_))) {}
    }
    tokio::spawn(async move { while inbox.recv().await.is_some() {} });
    let open = |installation: &str, name: &str| -> Arc<dyn Provider> {
        if (installation, name) == ("conformance", "prod") {
            return prod.clone();
        }
        let other = Arc::new(cluster(installation, name, &aws));
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
