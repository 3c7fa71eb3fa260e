//! Secrets for joining nodes: read or created when user data is rendered, and cached briefly.
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

use crate::host::{clock, files, text};
use crate::kubernetes::commands;
use crate::model::node_class::bootstrap::{Bootstrap, SecretSource};
use crate::provider::{CommandResult, FailureKind};
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::MapAwsError;

/// Cache time of a read secret, which is the longest delay of a change.
const READ: Duration = Duration::from_mins(5);
/// How long a created token is reused.
const MADE: Duration = Duration::from_mins(30);
/// Lifetime of a token: longer than the time for which the token is reused plus the slowest start
/// of a node.
const LIFE: SignedDuration = SignedDuration::from_mins(90);
/// Timeout of one call to the cluster.
const CALL: Duration = Duration::from_secs(15);
/// Groups of a joining node. Source: kubeadm's default.
const GROUPS: &str = "system:bootstrappers:kubeadm:default-node-token";

/// A secret string that is never displayed.
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

/// Why a secret is not available.
#[derive(Debug)]
pub(crate) struct SecretError {
    kind: FailureKind,
    /// Message, without the secret.
    pub(crate) why: String,
}

impl SecretError {
    fn new(kind: FailureKind, why: String) -> Self {
        Self { kind, why }
    }

    fn invalid(why: String) -> Self {
        Self::new(FailureKind::Invalid, why)
    }

    /// The result of a launch for which EC2 was not called. Errors that a retry cannot resolve are
    /// logged. The engine decides the launch again in any case.
    pub(crate) fn launch_result(self) -> CommandResult {
        let kind = match self.kind {
            FailureKind::Denied => FailureKind::Denied,
            FailureKind::Invalid | FailureKind::Gone => FailureKind::Invalid,
            _ => FailureKind::Conflict,
        };
        CommandResult::Failed { kind, text: self.why }
    }
}

/// Source of the join secret. `None` if none is needed.
fn secret_source(bootstrap: &Bootstrap) -> Option<&SecretSource> {
    match bootstrap {
        Bootstrap::Eks => None,
        Bootstrap::Kubeadm { token } => Some(token),
        Bootstrap::K3s(agent) | Bootstrap::Rke2(agent) => Some(&agent.token),
        Bootstrap::Talos { machine_config } => Some(machine_config),
        Bootstrap::Custom { token, .. } => token.as_ref(),
    }
}

impl JoinSecrets {
    /// The join secret. `None` if none is needed.
    pub(crate) async fn secret_for(
        &self,
        bootstrap: &Bootstrap,
        account: &AwsClients,
        client: &Client,
    ) -> Result<Option<JoinSecret>, SecretError> {
        let Some(source) = secret_source(bootstrap) else {
            return Ok(None);
        };
        let key = format!("{source:?}");
        let keep = match source {
            SecretSource::Minted => MADE,
            SecretSource::File(_) | SecretSource::SsmParameter(_) => READ,
        };
        let mut known = self.0.lock().await;
        let now = clock::monotonic_now();
        if let Some((read_at, secret)) = known.get(&key)
            && now.duration_since(*read_at) < keep
        {
            return Ok(Some(secret.clone()));
        }
        let secret = match source {
            SecretSource::File(path) => files::read_text(path)
                .map_err(|error| SecretError::invalid(text::error_chain(&error)))?,
            SecretSource::SsmParameter(name) => secret_parameter(account, name).await?,
            SecretSource::Minted => create_token(client).await?,
        };
        let secret = JoinSecret(secret.trim_end_matches('\n').to_owned());
        known.insert(key, (now, secret.clone()));
        Ok(Some(secret))
    }
}

async fn secret_parameter(account: &AwsClients, name: &str) -> Result<String, SecretError> {
    account.buckets.read.wait_for_token().await;
    let call = account.ssm.get_parameter().name(name).with_decryption(true);
    let answer = call.send().await.map_aws_error("GetParameter");
    let answer = answer.map_err(|fault| {
        let failure = fault.to_failure("ssm");
        SecretError::new(failure.failure_kind(), failure.text)
    })?;
    let value = answer.parameter().and_then(|parameter| parameter.value());
    value
        .map(str::to_owned)
        .ok_or_else(|| SecretError::invalid(format!("the SSM parameter {name:?} is empty")))
}

/// Creates a bootstrap token. The cluster deletes the token after its expiry.
async fn create_token(client: &Client) -> Result<String, SecretError> {
    let (id, secret) = (random_letters(6)?, random_letters(16)?);
    let expires = clock::now().checked_add(LIFE);
    let expires =
        expires.map_err(|_| SecretError::invalid("the clock is out of range".to_owned()))?;
    // Kubernetes parses whole seconds.
    let expires = jiff::Timestamp::from_second(expires.as_second()).unwrap_or(expires);
    let data = [
        ("token-id", id.clone()),
        ("token-secret", secret.clone()),
        ("expiration", expires.to_string()),
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
                // Other errors may contain the secret.
                kube::Error::Api(status) if status.code != 403 => format!("HTTP {}", status.code),
                _ => text::error_chain(&error),
            };
            let why = format!("cannot create a bootstrap token: {why}");
            Err(SecretError::new(commands::kind_of(&error), why))
        }
        Err(_) => {
            let why = "cannot create a bootstrap token: no response".to_owned();
            Err(SecretError::new(FailureKind::Unknown, why))
        }
    }
}

/// Random letters and digits, uniformly distributed.
fn random_letters(count: usize) -> Result<String, SecretError> {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    /// The largest multiple of the alphabet size in a byte. Higher values would bias the result.
    const EVEN: u8 = 252;
    let mut text = String::new();
    while text.len() < count {
        let mut drawn = [0; 32];
        clock::fill_random(&mut drawn).map_err(|error| SecretError::invalid(error.to_string()))?;
        let even = drawn.iter().filter(|byte| **byte < EVEN);
        let symbols = even.map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        text.extend(symbols.take(count - text.len()));
    }
    Ok(text)
}
