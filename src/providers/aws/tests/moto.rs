//! The AWS of in-process tests: moto behind the proxy of `tests/moto/`.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use serde_json::Value;

use crate::model::cluster::{Cluster, Eks, ManagementMode};
use crate::model::node_class::NodeIdentity;
use crate::providers::aws::tests::idle_calls::node_class;

const SERVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/serve");
pub(crate) const REGION: &str = "us-west-2";

/// A running moto process, which exits when its stdin is closed.
pub(crate) struct Aws {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    facts: Value,
}

impl Aws {
    /// Returns `None` if the interpreter with moto is not configured. The test then counts as
    /// skipped.
    #[expect(clippy::disallowed_methods, reason = "tests read their environment")]
    pub(crate) fn start_or_skip(test: &str) -> Option<Self> {
        let Ok(python) = env::var("OUTRIGGER_PYTHON") else {
            println!("SKIP {test}: moto: OUTRIGGER_PYTHON names no Python that has it");
            return None;
        };
        let mut child = Command::new(python)
            .args(["-B", SERVE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut started = Self {
            commands: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().expect("its stdout")),
            child,
            facts: Value::Null,
        };
        started.facts = started.answer();
        Some(started)
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        let answer: Value = serde_json::from_str(&line).expect("JSON");
        assert!(answer["error"].is_null(), "{answer}");
        answer
    }

    /// Executes a command of `tests/moto/serve`.
    pub(crate) fn send_command(&mut self, command: &Value) -> Value {
        let commands = self.commands.as_mut().expect("it listens");
        writeln!(commands, "{command}").expect("it listens");
        self.answer()
    }

    /// A seeded resource, by its name in the first line of `tests/moto/serve`.
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts[name].as_str().expect(name)
    }

    /// An SDK configuration for this endpoint.
    pub(crate) async fn config(&self) -> SdkConfig {
        let credentials = Credentials::new("test", "test", None, None, "test");
        aws_config::defaults(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .endpoint_url(self.fact("url"))
            .load()
            .await
    }

    /// A cluster with one node class of seeded resources.
    pub(crate) fn cluster(&self, installation: &str, name: &str) -> Cluster {
        let identity = NodeIdentity::Profile(self.fact("instance_profile").to_owned());
        let class = node_class("karpenter.sh/discovery", self.fact("cluster"), identity);
        Cluster {
            mode: ManagementMode::Manage,
            installation: installation.to_owned(),
            name: name.into(),
            region: REGION.to_owned(),
            eks: Some(Eks { service_cidr: Some("10.0.0.0/16".to_owned()), ..Eks::default() }),
            node_classes: vec![class],
            ..Cluster::default()
        }
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        self.commands = None;
        drop(self.child.wait());
    }
}
