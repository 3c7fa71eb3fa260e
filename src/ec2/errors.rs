//! What EC2's errors mean: sorted once, into refusals of offerings and failures of calls.
//! It must not know what is done about either.
//!
//! Source: spec/aws.md §5.9 and §10, 60 and 71 to 75.

use std::collections::{BTreeMap, BTreeSet};

use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::iam_policy::{TAGGING, statement};
use crate::engine::command::{CommandResult, FailureKind, OfferingRefusal, RefusalKind};
use crate::model::instance::OfferingKey;

/// Messages of AWS may be long: encoded ones take thousands of characters.
const MESSAGE_MAX: usize = 400;

/// How many different errors of one call are told.
const NOTES_MAX: usize = 5;

/// What kind of error ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Too many calls: slow down.
    Throttled,
    /// A right is missing.
    Denied,
    /// What it speaks of does not exist, or not any more.
    NotFound,
    /// A launch template that the call names is gone: made anew, the call is worth one more try.
    TemplateGone,
    /// The client token stands for another request: there may be an instance.
    TokenReused,
    /// A dry run that would have succeeded.
    DryRun,
    /// The instance profile is not known, or not yet: profiles take their time to be seen.
    ProfileUnknown,
    /// User data beyond what EC2 takes.
    UserDataTooLarge,
    /// AWS had a fault of its own, or did not answer.
    Fault,
    /// The request is wrong.
    Invalid,
}

/// An error that ended a whole call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsFailure {
    /// Its kind.
    pub sort: ErrorClass,
    /// The action that is missing, as IAM spells it; only where a right is.
    pub action: Option<String>,
    /// In words, with what to do; bounded, without secrets.
    pub text: String,
}

impl AwsFailure {
    /// As the engine has it.
    pub fn kind(&self) -> FailureKind {
        match self.sort {
            ErrorClass::Throttled => FailureKind::Throttled,
            ErrorClass::Denied => FailureKind::Denied,
            ErrorClass::NotFound => FailureKind::Gone,
            ErrorClass::TemplateGone | ErrorClass::ProfileUnknown => FailureKind::Conflict,
            ErrorClass::TokenReused | ErrorClass::Fault => FailureKind::Unknown,
            ErrorClass::DryRun | ErrorClass::UserDataTooLarge | ErrorClass::Invalid => {
                FailureKind::Invalid
            }
        }
    }

    /// As an answer.
    pub fn answer(&self) -> CommandResult {
        CommandResult::Failed {
            kind: self.kind(),
            text: self.text.clone(),
        }
    }
}

/// Codes of calls that came too often, over all services.
pub const THROTTLED: [&str; 8] = [
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "TooManyRequestsException",
    "PriorRequestNotComplete",
    "SlowDown",
];

/// Codes of calls that whoever makes them may not make, or not as who they are.
const DENIED: [&str; 10] = [
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "AuthorizationError",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "OptInRequired",
];

/// Codes of what does not exist. Source: spec/aws.md §5.9.
const NOT_FOUND: [&str; 8] = [
    "InvalidCapacityReservationId.NotFound",
    "InvalidInstanceID.NotFound",
    "QueueDoesNotExist",
    "AWS.SimpleQueueService.NonExistentQueue",
    "NoSuchEntity",
    "ParameterNotFound",
    "InvalidPlacementGroup.Unknown",
    "InvalidLaunchTemplateId.NotFound",
];

/// Codes of faults on the side of AWS.
const FAULTS: [&str; 6] = [
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "Unavailable",
    "RequestTimeout",
    "InternalServerError",
];

/// Sorts the error of a call. `operation` is the action it needs, as IAM spells it; `status` is
/// that of HTTP. A call without any answer has neither code nor status.
pub fn failure(operation: &str, code: &str, message: &str, status: Option<u16>) -> AwsFailure {
    let code = code.strip_prefix("Client.").unwrap_or(code);
    let code = code.strip_prefix("Server.").unwrap_or(code);
    let sort = sort(code, message, status);
    let (action, text) = match sort {
        ErrorClass::Denied => denied(operation, code, message),
        _ => {
            let advice = advice(code, message).map(|own| format!(" ({own})"));
            let advice = advice.unwrap_or_default();
            let said = match (code, message) {
                ("", "") => "no answer".to_owned(),
                ("", message) => bounded(message),
                (code, "") => code.to_owned(),
                (code, message) => format!("{code}: {}", bounded(message)),
            };
            (None, format!("{operation}: {said}{advice}"))
        }
    };
    AwsFailure { sort, action, text }
}

fn sort(code: &str, message: &str, status: Option<u16>) -> ErrorClass {
    match code {
        "InvalidLaunchTemplateName.NotFoundException" => ErrorClass::TemplateGone,
        "IdempotentParameterMismatch" | "IdempotentInstanceTerminated" => ErrorClass::TokenReused,
        "DryRunOperation" => ErrorClass::DryRun,
        "InvalidParameterValue" if message.contains("Invalid IAM Instance Profile name") => {
            ErrorClass::ProfileUnknown
        }
        "InvalidUserData.Malformed" if message.contains("User data is limited to") => {
            ErrorClass::UserDataTooLarge
        }
        _ if THROTTLED.contains(&code) || status == Some(429) => ErrorClass::Throttled,
        _ if DENIED.contains(&code) || code.starts_with("AuthFailure.") => ErrorClass::Denied,
        _ if NOT_FOUND.contains(&code) => ErrorClass::NotFound,
        _ if FAULTS.contains(&code) || status.is_some_and(|own| own >= 500) => ErrorClass::Fault,
        "" => ErrorClass::Fault,
        _ => ErrorClass::Invalid,
    }
}

/// What is missing, and where it is to be granted.
fn denied(operation: &str, code: &str, message: &str) -> (Option<String>, String) {
    let named = between(message, "to perform: ", &[' ', ',', ';']);
    let named = named.filter(|own| own.contains(':'));
    let action = named.unwrap_or(operation).trim_end_matches('.');
    let arn = between(message, "on resource: ", &[' ', ',', ';']).unwrap_or("");
    let is_known = matches!(
        code,
        "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" | "AuthorizationError"
    );
    if code == SPOT_ROLE {
        let action = "iam:CreateServiceLinkedRole";
        let text = format!("{operation}: {SPOT_ADVICE}");
        return (Some(action.to_owned()), text);
    }
    if !is_known {
        let text = format!("{operation}: {code}: {}", bounded(message));
        return (None, text);
    }
    let on = match arn {
        "" => String::new(),
        arn => format!(" on {arn}"),
    };
    let what = if message.contains("with an explicit deny in a permissions boundary") {
        "a permissions boundary forbids it".to_owned()
    } else if message.contains("with an explicit deny in a service control policy") {
        "a service control policy forbids it".to_owned()
    } else if message.contains("with an explicit deny") {
        "a policy forbids it".to_owned()
    } else if message.contains("Not authorized for images") {
        "the image is not shared with this account".to_owned()
    } else {
        let granted = match operation {
            "ec2:CreateTags" => Some(TAGGING),
            _ => statement(action, arn),
        };
        match granted {
            Some(sid) => format!("statement {sid} of the shipped policy grants it"),
            None => "no policy grants it".to_owned(),
        }
    };
    let text = format!("not allowed: {action}{on}; {what}");
    (Some(action.to_owned()), text)
}

/// What a user can do about an error that says it badly. Source: spec/aws.md §5.9, reasons.
fn advice(code: &str, message: &str) -> Option<&'static str> {
    Some(match code {
        _ if message.contains("belong to different networks") => {
            "security groups and subnets must be of one VPC"
        }
        _ if message.contains("iamInstanceProfile.name is invalid") => {
            "there is no such instance profile"
        }
        _ if message.contains("User data is limited to") => "user data is at most 16 KB",
        _ if message.contains("not eligible for Free Tier") => {
            "the account may only launch types of the free tier"
        }
        "InvalidAMIID.Malformed" => "the image id is wrong",
        "InvalidAMIID.NotFound" => "there is no such image, or it is not shared with this account",
        "InvalidLaunchTemplateId.NotFound" => "the launch template was deleted by someone",
        "MaxFleetCountExceeded" => "the account's quota of fleet requests is used up",
        "PendingVerification" => "AWS has yet to verify the account for this region",
        "MaxSpotInstanceCountExceeded" => "the account's quota of spot instances is used up",
        "VcpuLimitExceeded" => "the account's quota of vCPUs is used up",
        "InsufficientFreeAddressesInSubnet" => "the subnet has no addresses left",
        "IdempotentParameterMismatch" => "the client token stands for another request",
        _ => return None,
    })
}

fn between<'m>(text: &'m str, before: &str, ends: &[char]) -> Option<&'m str> {
    let (_, rest) = text.split_once(before)?;
    let rest = rest.split(ends).next()?;
    (!rest.is_empty()).then_some(rest)
}

/// Cuts a message short, without what EC2 encodes for `DecodeAuthorizationMessage`.
fn bounded(message: &str) -> String {
    let plain = message
        .split(" Encoded authorization failure message")
        .next();
    let plain = plain.unwrap_or(message).trim();
    let mut short: String = plain.chars().take(MESSAGE_MAX).collect();
    if short.len() < plain.len() {
        short.push('…');
    }
    short
}

const SPOT_ROLE: &str = "AuthFailure.ServiceLinkedRoleCreationNotPermitted";
const SPOT_ADVICE: &str = "spot instances need the service-linked role AWSServiceRoleForEC2Spot: \
    create it once (aws iam create-service-linked-role --aws-service-name spot.amazonaws.com), or \
    grant iam:CreateServiceLinkedRole";

/// EC2 says it as want of capacity. Source: karpenter-provider-aws, pkg/errors.
const SPREAD_LIMIT: &str = "limit of instances in this spread placement group";

/// An error within the answer to CreateFleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetError {
    /// Code.
    pub code: String,
    /// Message.
    pub message: String,
    /// The type it is about.
    pub instance_type: Option<String>,
    /// The zone it is about.
    pub zone: Option<String>,
    /// The subnet it is about.
    pub subnet: Option<String>,
}

/// What the answer to CreateFleet says beside the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetOutcome {
    /// Offerings that were refused; to be heeded even where an instance was launched.
    pub refusals: Vec<OfferingRefusal>,
    /// Subnets without an address.
    pub exhausted: BTreeSet<String>,
    /// Whether spot capacity may not be bought at all.
    pub spot_denied: bool,
    /// Too many calls: whatever it says, no offering is refused.
    pub throttled: bool,
    /// Errors that nothing is known about, and quotas that are used up; for people.
    pub notes: Vec<String>,
    /// Why nothing was launched, where that is no want of capacity.
    failure: Option<AwsFailure>,
}

/// What an error says of offerings; none where it says nothing of them.
fn refused(code: &str, message: &str, in_group: bool) -> Option<RefusalKind> {
    Some(match code {
        _ if message.contains(SPREAD_LIMIT) => RefusalKind::PlacementExceeded,
        // A group narrows what can be had; others may find the same offering plentiful.
        "InsufficientInstanceCapacity" | "UnfulfillableCapacity" if in_group => {
            RefusalKind::PlacementExceeded
        }
        "InsufficientInstanceCapacity"
        | "UnfulfillableCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientCapacityOnHost"
        | "SpotMaxPriceTooLow" => RefusalKind::InsufficientCapacity,
        "VcpuLimitExceeded"
        | "MaxSpotInstanceCountExceeded"
        | "MaxFleetCountExceeded"
        | "InstanceLimitExceeded" => RefusalKind::LimitExceeded,
        "ReservationCapacityExceeded" => RefusalKind::ReservationExceeded,
        "Unsupported" | "UnsupportedOperation" | "InvalidAvailabilityZone" => {
            RefusalKind::Unsupported
        }
        "InsufficientFreeAddressesInSubnet" => RefusalKind::NoAddress,
        SPOT_ROLE => RefusalKind::SpotDenied,
        _ => return None,
    })
}

impl FleetOutcome {
    /// Sorts the errors of an answer to a request. Errors come with an instance, too, and count as
    /// much (spec §10, 71).
    pub fn of(request: &FleetRequest, errors: &[FleetError]) -> Self {
        let in_group = request
            .configs
            .iter()
            .any(|own| own.template.placement.group.is_some());
        let mut own = Self::default();
        let mut all: BTreeMap<OfferingKey, RefusalKind> = BTreeMap::new();
        for refusal in &request.refused {
            all.insert(refusal.offering.clone(), refusal.kind);
        }
        for error in errors {
            own.take(request, error, in_group, &mut all);
        }
        let refusal = |(offering, kind)| OfferingRefusal { offering, kind };
        own.refusals = all.into_iter().map(refusal).collect();
        own
    }

    fn take(
        &mut self,
        request: &FleetRequest,
        error: &FleetError,
        in_group: bool,
        all: &mut BTreeMap<OfferingKey, RefusalKind>,
    ) {
        let code = error.code.as_str();
        let Some(kind) = refused(code, &error.message, in_group) else {
            let failure = failure("ec2:CreateFleet", code, &error.message, None);
            self.throttled |= failure.sort == ErrorClass::Throttled;
            self.note(failure.text.clone());
            self.failure.get_or_insert(failure);
            return;
        };
        match kind {
            RefusalKind::NoAddress => self.exhausted.extend(error.subnet.clone()),
            RefusalKind::SpotDenied => {
                self.spot_denied = true;
                self.note(SPOT_ADVICE.to_owned());
            }
            RefusalKind::LimitExceeded => {
                let advice = advice(code, &error.message).unwrap_or(code);
                self.note(advice.to_owned());
            }
            _ => {}
        }
        // Spot is denied as a whole; a spread group takes no more of any type in its zone.
        let by_type =
            !matches!(kind, RefusalKind::SpotDenied) && !error.message.contains(SPREAD_LIMIT);
        let by_zone = !matches!(kind, RefusalKind::SpotDenied);
        let is = |named: &Option<String>, own: &str| named.as_ref().is_none_or(|it| it == own);
        for own in request.overrides() {
            let key = &own.offering;
            if (!by_type || is(&error.instance_type, key.instance_type.as_str()))
                && (!by_zone || is(&error.zone, key.zone.as_str()))
                && (!by_zone || is(&error.subnet, &own.subnet))
            {
                all.insert(key.clone(), kind);
            }
        }
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// The answer where nothing was launched. Want of capacity is a refusal; anything else is a
    /// failure, unless some offerings were refused: without those it may go better.
    pub fn answer(&self) -> CommandResult {
        if !self.refusals.is_empty() {
            return CommandResult::LaunchRefused(self.refusals.clone());
        }
        // An answer without an instance is final: nothing that it says leaves it open whether there
        // is one.
        let (kind, text) = match &self.failure {
            Some(own) if own.sort == ErrorClass::Throttled => {
                (FailureKind::Throttled, own.text.clone())
            }
            Some(own) if own.sort == ErrorClass::Denied => (FailureKind::Denied, own.text.clone()),
            Some(own) => (FailureKind::Invalid, own.text.clone()),
            None => {
                let text = "ec2:CreateFleet: nothing was launched, and no reason given";
                (FailureKind::Invalid, text.to_owned())
            }
        };
        CommandResult::Failed { kind, text }
    }
}
