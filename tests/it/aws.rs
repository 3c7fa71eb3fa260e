//! Runs one AWS of the tests: its address, its seeded resources, and the commands of tests.

mod kubelets;
mod proxy;
mod cases;
mod ec2_behaviour;
mod early_binding;
mod test_host;
mod kills;
mod doctor;
mod ssm_parameter;
mod standby;
mod sweeps;
mod bursts;
mod sandbox;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::SharedCredentialsProvider;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::plane::fixture::patience;
use crate::test_script::Driven;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/serve");

/// The environment variable with the directory in which a full test run records the permissions
/// that the daemon uses.
const RECORD: &str = "OUTRIGGER_AWS_RECORD";

/// A running moto behind its proxy; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Aws {
    facts: Value,
    /// The home directory of the child processes. It has no AWS profile of the user who runs the
    /// tests.
    home: TempDir,
    script: Mutex<Driven>,
}

impl Aws {
    /// Starts it for a test. Skips the test if moto is missing; `tests/all` counts the skipped
    /// tests. The arguments are those of `tests/moto/serve`.
    pub(crate) fn start_or_skip(test: &str, arguments: &[&str]) -> Option<Aws> {
        let Some(python) = variable("OUTRIGGER_PYTHON") else {
            println!("SKIP {test}: moto: OUTRIGGER_PYTHON names no Python that has it");
            return None;
        };
        let mut command = Command::new(python);
        // Python writes no bytecode next to the script.
        command.args(["-B", SCRIPT]).args(arguments);
        // Moto must not use a proxy or a profile of the caller.
        command.env_clear();
        if let Some(directory) = variable(RECORD) {
            command.env(RECORD, directory);
        }
        let mut script = Driven::start(command, "tests/moto/serve").expect("moto starts");
        let facts = script.answer("the start of tests/moto/serve");
        Some(Aws {
            facts: facts.expect("moto prints the seeded values"),
            home: TempDir::new().expect("a directory"),
            script: Mutex::new(script),
        })
    }

    /// Returns a seeded value by its path in the first line of `tests/moto/serve`: "/url", "/role",
    /// "/subnets/us-west-2a", "/images/al2023~1x86_64~1standard".
    pub(crate) fn fact(&self, pointer: &str) -> &str {
        let fact = self.facts.pointer(pointer).and_then(Value::as_str);
        fact.unwrap_or_else(|| panic!("no {pointer} in {}", self.facts))
    }

    /// Returns an image id by family, architecture and variant: "al2023/arm64/standard".
    pub(crate) fn image(&self, which: &str) -> &str {
        let fact = self.facts["images"][which].as_str();
        fact.unwrap_or_else(|| panic!("no image {which} in {}", self.facts))
    }

    /// Executes a command of `tests/moto/serve`.
    pub(crate) fn ask(&self, command: &Value) -> Value {
        // A test that panicked while it held the lock left no half-written command behind.
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = script.ask(&command.to_string());
        answer.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Injects a fault into the next calls of an action; `how` has the arguments of
    /// `faults.Faults.add`.
    pub(crate) fn fault(&self, action: &str, kind: &str, how: &Value) {
        let mut command = json!({"do": "fault", "action": action, "kind": kind});
        merge(&mut command, how);
        self.ask(&command);
    }

    /// Makes the capacity of matching overrides unavailable; `which` has the arguments of
    /// `fleet.Fleet.outage`.
    pub(crate) fn outage(&self, which: &Value) {
        let mut command = json!({"do": "outage"});
        merge(&mut command, which);
        self.ask(&command);
    }

    /// Denies these actions, named as in a policy.
    pub(crate) fn deny(&self, actions: &[&str]) {
        self.ask(&json!({"do": "deny", "actions": actions}));
    }

    /// Removes all faults, outages and denials.
    pub(crate) fn clear(&self) {
        self.ask(&json!({"do": "clear"}));
    }

    /// Waits until every sent message has been deleted, at most for the [`patience`] of these
    /// seconds.
    pub(crate) async fn until_the_queue_is_empty(&self, seconds: u64) {
        let nothing = json!({"visible": 0, "in_flight": 0});
        for _ in 0..2 * patience(seconds).as_secs() {
            if self.ask(&json!({"do": "queue"})) == nothing {
                return;
            }
            sleep(Duration::from_millis(500)).await;
        }
        panic!("the queue is not empty: {}", self.ask(&json!({"do": "queue"})));
    }

    /// Returns all instances since the start, also those that listings hide.
    pub(crate) fn instances(&self) -> Vec<Value> {
        list(&self.ask(&json!({"do": "instances"})), "instances")
    }

    /// Returns the running instances.
    pub(crate) fn running(&self) -> Vec<Value> {
        let command = json!({"do": "instances", "states": ["running"]});
        list(&self.ask(&command), "instances")
    }

    /// Returns id, state and claim of all instances since the start, of one installation or of all.
    pub(crate) fn roll(&self, installation: Option<&str>) -> Vec<Value> {
        let command = json!({"do": "roll", "installation": installation});
        list(&self.ask(&command), "roll")
    }

    /// Returns all launch templates as stored, with their data.
    pub(crate) fn templates(&self) -> Vec<Value> {
        list(&self.ask(&json!({"do": "templates"})), "templates")
    }

    /// Returns all calls since the start, with their parameters and results.
    pub(crate) fn calls(&self) -> Vec<Value> {
        list(&self.ask(&json!({"do": "calls"})), "calls")
    }

    /// Returns the number of calls of each action, by its name in a policy.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let answer = self.ask(&json!({"do": "counts"}));
        let counts = answer["counts"].as_object().into_iter().flatten();
        counts.map(|(call, count)| (call.clone(), count.as_u64().unwrap_or_default())).collect()
    }

    /// Puts a message into the interruption queue.
    pub(crate) fn send(&self, body: &Value) {
        self.ask(&json!({"do": "send", "body": body}));
    }

    /// Returns a command that can reach only this AWS. Its environment has nothing of the caller's
    /// except `PATH`.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.environment());
        if let Some(path) = variable("PATH") {
            command.env("PATH", path);
        }
        command
    }

    /// Returns the environment that directs all AWS clients to this server. It leaves no endpoint,
    /// profile or metadata server as an alternative.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let home = self.home.path().to_string_lossy().into_owned();
        let nothing = format!("{home}/none");
        vec![
            ("AWS_ENDPOINT_URL", self.fact("/url").to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
            ("AWS_REGION", self.fact("/region").to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("AWS_CONFIG_FILE", nothing.clone()),
            ("AWS_SHARED_CREDENTIALS_FILE", nothing),
            ("HOME", home),
        ]
    }

    /// Returns the same configuration for a client in the test process. A call is not retried, so
    /// that the test sees its result.
    pub(crate) async fn config(&self) -> SdkConfig {
        let credentials = Credentials::new("test", "test", None, None, "tests");
        aws_config::defaults(BehaviorVersion::latest())
            .endpoint_url(self.fact("/url"))
            .region(Region::new(self.fact("/region").to_owned()))
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .retry_config(aws_config::retry::RetryConfig::disabled())
            .load()
            .await
    }
}

#[expect(clippy::disallowed_methods, reason = "a test reads how it is asked to run")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn merge(command: &mut Value, more: &Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        command[name] = value.clone();
    }
}

fn list(answer: &Value, name: &str) -> Vec<Value> {
    match &answer[name] {
        Value::Array(all) => all.clone(),
        other => panic!("{name} is not a list: {other}"),
    }
}
