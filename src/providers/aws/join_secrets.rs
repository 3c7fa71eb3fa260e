//! Secrets that nodes join with: read or made when user data is rendered, and never kept for long.
//! It must not know in which words a node is told.
//!
//! Source of the bootstrap token: Kubernetes, authenticating with bootstrap tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::engine::command::{CommandResult, FailureKind};
use crate::host::{clock, files, text};
use crate::kubernetes::commands;
use crate::model::node_class::bootstrap::{Bootstrap, SecretSource};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;

/// How long a secret is used that was read: whoever changes it waits no longer.
const READ: Duration = Duration::from_mins(5);
/// How long a token is given out that was made; then another one is.
const MADE: Duration = Duration::from_mins(30);
/// How long a token is good for: longer than it is given out and the slowest node needs.
const LIFE: SignedDuration = SignedDuration::from_mins(90);
/// Time for one call to the cluster.
const CALL: Duration = Duration::from_secs(15);
/// Groups that a joining node is in. Source: kubeadm's default.
const GROUPS: &str = "system:bootstrappers:kubeadm:default-node-token";

/// Text that is shown nowhere.
#[derive(Clone)]
pub(crate) struct JoinSecret(pub(crate) String);

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

/// The secrets of one cluster.
#[derive(Debug, Default)]
pub(crate) struct JoinSecrets(Mutex<BTreeMap<String, (Instant, JoinSecret)>>);

/// Why there is no secret.
#[derive(Debug)]
pub(crate) struct SecretError {
    kind: FailureKind,
    /// In words, without the secret.
    pub(crate) why: String,
}

impl SecretError {
    fn new(kind: FailureKind, why: String) -> Self {
        Self { kind, why }
    }

    fn invalid(why: String) -> Self {
        Self::new(FailureKind::Invalid, why)
    }

    /// The answer to a launch, of which nothing has been asked of EC2. What trying again does not
    /// mend is told; the launch is decided anew either way.
    pub(crate) fn answer(self) -> CommandResult {
        let kind = match self.kind {
            FailureKind::Denied => FailureKind::Denied,
            FailureKind::Invalid | FailureKind::Gone => FailureKind::Invalid,
            _ => FailureKind::Conflict,
        };
        CommandResult::Failed {
            kind,
            text: self.why,
        }
    }
}

/// Where the secret of a bootstrap comes from; none where it needs none.
fn source(bootstrap: &Bootstrap) -> Option<&SecretSource> {
    match bootstrap {
        Bootstrap::Eks => None,
        Bootstrap::Kubeadm { token } => Some(token),
        Bootstrap::K3s(agent) | Bootstrap::Rke2(agent) => Some(&agent.token),
        Bootstrap::Talos { machine_config } => Some(machine_config),
        Bootstrap::Custom { token, .. } => token.as_ref(),
    }
}

impl JoinSecrets {
    /// The secret of a bootstrap; none where it needs none.
    pub(crate) async fn of(
        &self,
        bootstrap: &Bootstrap,
        account: &AwsClients,
        client: &Client,
    ) -> Result<Option<JoinSecret>, SecretError> {
        let Some(source) = source(bootstrap) else {
            return Ok(None);
        };
        let key = format!("{source:?}");
        let keep = match source {
            SecretSource::Minted => MADE,
            SecretSource::File(_) | SecretSource::SsmParameter(_) => READ,
        };
        let mut known = self.0.lock().await;
        let now = clock::monotonic();
        if let Some((at, secret)) = known.get(&key)
            && now.duration_since(*at) < keep
        {
            return Ok(Some(secret.clone()));
        }
        let secret = match source {
            SecretSource::File(path) => {
                files::read_text(path).map_err(|error| SecretError::invalid(text::chain(&error)))?
            }
            SecretSource::SsmParameter(name) => parameter(account, name).await?,
            SecretSource::Minted => mint(client).await?,
        };
        let secret = JoinSecret(secret.trim_end_matches('\n').to_owned());
        known.insert(key, (now, secret.clone()));
        Ok(Some(secret))
    }
}

async fn parameter(account: &AwsClients, name: &str) -> Result<String, SecretError> {
    account.buckets.read.turn().await;
    let call = account.ssm.get_parameter().name(name).with_decryption(true);
    let answer = call.send().await;
    let answer = answer.map_err(|error| {
        let failure = AwsError::new("GetParameter", error).sorted("ssm");
        SecretError::new(failure.kind(), failure.text)
    })?;
    let value = answer.parameter().and_then(|own| own.value());
    value
        .map(str::to_owned)
        .ok_or_else(|| SecretError::invalid(format!("the SSM parameter {name:?} is empty")))
}

/// Makes a bootstrap token. The cluster removes it when its time is over.
async fn mint(client: &Client) -> Result<String, SecretError> {
    let [id, secret] = [letters(6), letters(16)].map(|own| own.map_err(SecretError::invalid));
    let (id, secret) = (id?, secret?);
    let ends = clock::now().checked_add(LIFE);
    let ends = ends.map_err(|_| SecretError::invalid("the clock is at its end".to_owned()))?;
    // Kubernetes reads whole seconds.
    let ends = jiff::Timestamp::from_second(ends.as_second()).unwrap_or(ends);
    let data = [
        ("token-id", id.clone()),
        ("token-secret", secret.clone()),
        ("expiration", ends.to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("usage-bootstrap-signing", "true".to_owned()),
        ("auth-extra-groups", GROUPS.to_owned()),
        ("description", "nodes that Outrigger launches".to_owned()),
    ];
    let data = data.map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    let object = Secret {
        metadata: ObjectMeta {
            name: Some(format!("bootstrap-token-{id}")),
            namespace: Some("kube-system".to_owned()),
            ..ObjectMeta::default()
        },
        type_: Some("bootstrap.kubernetes.io/token".to_owned()),
        data: Some(data.into_iter().collect()),
        ..Secret::default()
    };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "kube-system");
    let parameters = PostParams::default();
    match timeout(CALL, secrets.create(&parameters, &object)).await {
        Ok(Ok(_)) => Ok(format!("{id}.{secret}")),
        Ok(Err(error)) => {
            let why = match &error {
                // Whoever else refuses it may say what is in it.
                kube::Error::Api(status) if status.code != 403 => format!("HTTP {}", status.code),
                _ => text::chain(&error),
            };
            let why = format!("make a bootstrap token: {why}");
            Err(SecretError::new(commands::kind_of(&error), why))
        }
        Err(_) => {
            let why = "make a bootstrap token: no answer".to_owned();
            Err(SecretError::new(FailureKind::Unknown, why))
        }
    }
}

/// So many letters and digits, each as likely as any other, that nobody can guess.
fn letters(count: usize) -> Result<String, String> {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    /// The largest multiple of their number that a byte holds: beyond, some would come more often.
    const EVEN: u8 = 252;
    let mut text = String::new();
    while text.len() < count {
        let mut drawn = [0; 32];
        clock::unguessable(&mut drawn)?;
        let even = drawn.iter().filter(|byte| **byte < EVEN);
        let more = even.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        text.extend(more.take(count - text.len()));
    }
    Ok(text)
}
