//! Messages of the exec protocol, one JSON object per line, as documented in `docs/PROVIDERS.md`.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::host::text;
use crate::model::claim::{ClaimRecord, TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClaimId, ClusterName, InstanceId};
use crate::model::instance::{Instance, OfferingKey};
use crate::model::labels::Labels;
use crate::provider::{CommandResult, Launch};
use crate::providers::wire_format::{AnswerBody, FormatError, OfferingBody, TaintBody};

/// The protocol version.
pub const PROTOCOL: u32 = 1;

/// Why a message cannot be written, or a line is not a valid response.
#[derive(Debug, Error)]
pub enum ProtocolError {
    /// The line is not JSON of this form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A field has an unknown value.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The program chose a different protocol version.
    #[error("protocol version {0} is not supported; Outrigger uses version {PROTOCOL}")]
    UnsupportedVersion(u32),
    /// The program has answered the hello with this error.
    #[error("{0}")]
    HelloRefused(String),
    /// A refusal of offerings names no requested offering.
    #[error("it refuses none of the requested offerings")]
    NoRequestedOffering,
    /// The response belongs to a different kind of call.
    #[error("not a response to this call")]
    OtherCall,
    /// An instance id is not valid.
    #[error("{:?} is not a valid instance id", text::bounded_line(.0))]
    InstanceId(String),
    /// A Node name is not valid.
    #[error("{:?} is not a valid node name", text::bounded_line(.0))]
    NodeName(String),
    /// The provider id of a Node does not end with the instance id.
    #[error("the provider id {:?} does not belong to {instance}", text::bounded_line(.provider_id))]
    ProviderId {
        /// The provider id of the Node.
        provider_id: String,
        /// The instance.
        instance: InstanceId,
    },
    /// A launched instance does not have the tags of its claim.
    #[error("{0} does not have the tags of the claim")]
    ClaimTags(InstanceId),
    /// A launched instance has an offering that was not requested.
    #[error("{instance} is {offering}, which was not requested")]
    OtherOffering {
        /// The instance.
        instance: InstanceId,
        /// The offering of the instance.
        offering: OfferingKey,
    },
    /// A launched instance is not live.
    #[error("{0} is already terminated")]
    Terminated(InstanceId),
}

/// Maximum length of an instance id, which is logged and written to `spec.providerID` of a Node.
const ID_CHARS: usize = 256;

/// Maximum length of a Node name. Source: Kubernetes, DNS subdomain names.
const NAME_CHARS: usize = 253;

/// Installation and cluster of a call.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterScope {
    /// The installation id.
    pub installation: String,
    /// The cluster.
    #[serde(serialize_with = "as_text")]
    pub cluster: ClusterName,
}

fn as_text<S: serde::Serializer>(name: &ClusterName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}

/// A request line.
#[derive(Debug, Serialize)]
struct ProgramRequest<'a> {
    id: u64,
    deadline_ms: u64,
    #[serde(flatten)]
    scope: &'a ClusterScope,
    #[serde(flatten)]
    call: &'a ProviderCall,
}

/// The call.
#[derive(Debug, Serialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum ProviderCall {
    /// The hello, with the supported protocol versions.
    Hello {
        /// The versions.
        protocols: [u32; 1],
    },
    /// Launches an instance for a claim.
    Launch(Box<LaunchCall>),
    /// Terminates an instance.
    Terminate {
        /// The claim id.
        claim: String,
        /// The instance id.
        instance: String,
    },
    /// Lists the instances of the cluster.
    List {},
}

/// A launch in the common format of providers.
#[derive(Debug, Serialize)]
pub struct LaunchCall {
    claim: String,
    pool: String,
    node_class: Option<String>,
    offerings: Vec<OfferingBody>,
    labels: Labels,
    taints: Vec<TaintBody>,
    tags: Labels,
    user_data: String,
}

impl LaunchCall {
    /// A launch with the user data of its node class.
    pub fn new(launch: Launch, user_data: String) -> Self {
        let claim = launch.claim;
        let offerings = launch.offerings.into_iter().map(OfferingBody::from);
        Self {
            claim: claim.id.0,
            pool: claim.pool.0,
            node_class: claim.node_class.map(|name| name.0),
            offerings: offerings.collect(),
            labels: launch.labels,
            taints: launch.taints.into_iter().map(TaintBody::from).collect(),
            tags: launch.tags,
            user_data,
        }
    }
}

/// Serializes a call as a line.
pub fn request_line(
    id: u64,
    deadline_ms: u64,
    scope: &ClusterScope,
    call: &ProviderCall,
) -> Result<Vec<u8>, ProtocolError> {
    let request = ProgramRequest { id, deadline_ms, scope, call };
    let mut line = serde_json::to_vec(&request)?;
    line.push(b'\n');
    Ok(line)
}

#[derive(Deserialize)]
struct Head {
    id: u64,
}

#[derive(Deserialize)]
struct ResponseBody<T> {
    answer: T,
}

/// The hello of the program.
#[derive(Debug, Deserialize)]
pub struct Hello {
    /// The protocol version that the program uses.
    pub protocol: u32,
    /// Display name.
    #[serde(default)]
    pub name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Greeting {
    Hello(Hello),
    Failed { text: String },
}

/// The call id of a response line.
pub fn response_id(line: &[u8]) -> Result<u64, ProtocolError> {
    let head: Head = serde_json::from_slice(line)?;
    Ok(head.id)
}

/// Parses the hello response.
pub fn parse_hello(line: &[u8]) -> Result<Hello, ProtocolError> {
    let body: ResponseBody<Greeting> = serde_json::from_slice(line)?;
    match body.answer {
        Greeting::Hello(hello) if hello.protocol == PROTOCOL => Ok(hello),
        Greeting::Hello(hello) => Err(ProtocolError::UnsupportedVersion(hello.protocol)),
        Greeting::Failed { text } => Err(ProtocolError::HelloRefused(text)),
    }
}

/// Expectations for the response to a call.
#[derive(Debug)]
pub enum Expect {
    /// An instance of this claim with one of these offerings, or a refusal of some of them.
    Launch(ClaimId, Vec<OfferingKey>),
    /// The state of the instance.
    Terminate,
    /// The instances of the cluster.
    List,
}

/// Parses a response. Also returns the number of foreign instances that were dropped.
pub fn parse_response(
    line: &[u8],
    expect: &Expect,
    scope: &ClusterScope,
) -> Result<(CommandResult, usize), ProtocolError> {
    let body: ResponseBody<AnswerBody> = serde_json::from_slice(line)?;
    let answer = match (expect, CommandResult::try_from(body.answer)?) {
        (_, CommandResult::Failed { kind, text }) => {
            CommandResult::Failed { kind, text: text::bounded_line(&text) }
        }
        (Expect::Launch(claim, offerings), CommandResult::Launched(instance)) => {
            check_id(&instance.id)?;
            check_node(&instance)?;
            check_launched(&instance, claim, offerings, scope)?;
            CommandResult::Launched(instance)
        }
        (Expect::Launch(_, offerings), CommandResult::LaunchRefused(mut refusals)) => {
            refusals.retain(|refusal| offerings.contains(&refusal.offering));
            if refusals.is_empty() {
                return Err(ProtocolError::NoRequestedOffering);
            }
            CommandResult::LaunchRefused(refusals)
        }
        (Expect::Terminate, CommandResult::Terminating(state)) => CommandResult::Terminating(state),
        (Expect::List, CommandResult::Instances(mut instances)) => {
            let listed = instances.len();
            instances.retain(|instance| scope.owns_instance(instance));
            for instance in &instances {
                check_id(&instance.id)?;
                check_node(instance)?;
            }
            let others = listed - instances.len();
            return Ok((CommandResult::Instances(instances), others));
        }
        _ => return Err(ProtocolError::OtherCall),
    };
    Ok((answer, 0))
}

impl ClusterScope {
    /// Returns whether an instance is of this installation and cluster.
    fn owns_instance(&self, instance: &Instance) -> bool {
        let wanted =
            [(TAG_INSTALLATION, self.installation.as_str()), (TAG_CLUSTER, self.cluster.as_str())];
        let mut tags = wanted.into_iter();
        tags.all(|(tag, value)| instance.tags.get(tag).is_some_and(|known| known == value))
    }
}

/// `spec.providerID` of a Node ends with a slash and the id.
fn check_id(id: &InstanceId) -> Result<(), ProtocolError> {
    let id = id.as_str();
    match id.is_empty()
        || id.len() > ID_CHARS
        || !id.chars().all(|it| it.is_ascii_graphic() && it != '/')
    {
        true => Err(ProtocolError::InstanceId(id.to_owned())),
        false => Ok(()),
    }
}

/// Validates the Node data of an instance. The Node must be identifiable by the instance id.
fn check_node(instance: &Instance) -> Result<(), ProtocolError> {
    let Some(node) = &instance.node else {
        return Ok(());
    };
    let (id, name) = (instance.id.as_str(), node.name.as_str());
    if name.len() > NAME_CHARS
        || !name.split('.').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
    {
        return Err(ProtocolError::NodeName(name.to_owned()));
    }
    let prefix = node.provider_id.strip_suffix(id);
    match prefix.is_some_and(|prefix| prefix.contains("://") && prefix.ends_with('/')) {
        true => Ok(()),
        false => Err(ProtocolError::ProviderId {
            provider_id: node.provider_id.clone(),
            instance: instance.id.clone(),
        }),
    }
}

fn check_launched(
    instance: &Instance,
    claim: &ClaimId,
    offerings: &[OfferingKey],
    scope: &ClusterScope,
) -> Result<(), ProtocolError> {
    let record = ClaimRecord::from_tags(&instance.tags, &scope.installation, &scope.cluster);
    let id = instance.id.clone();
    if !record.is_ok_and(|record| record.id == *claim) {
        return Err(ProtocolError::ClaimTags(id));
    }
    if !offerings.contains(&instance.offering) {
        return Err(ProtocolError::OtherOffering {
            instance: id,
            offering: instance.offering.clone(),
        });
    }
    match instance.state.is_live() {
        true => Ok(()),
        false => Err(ProtocolError::Terminated(id)),
    }
}
