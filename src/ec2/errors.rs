//! Classifies EC2 errors as refusals of offerings and failures of calls.
//!
//! Source: spec/aws.md §5.9 and §10, 60 and 71 to 75.

use std::collections::{BTreeMap, BTreeSet};

use crate::ec2::create_fleet::FleetRequest;
use crate::ec2::iam_policy::{TAGGING, granting_statement};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::provider::{CommandResult, FailureKind, OfferingRefusal, RefusalKind};

/// Maximum length of a message. Encoded messages of AWS have thousands of characters.
const MESSAGE_MAX: usize = 400;

/// Maximum number of distinct errors that are reported per call.
const NOTES_MAX: usize = 5;

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Throttled.
    Throttled,
    /// A permission is missing.
    Denied,
    /// The resource does not exist.
    NotFound,
    /// The launch template does not exist. The call can be retried after recreating it.
    TemplateGone,
    /// The client token was used for a different request, so an instance may exist.
    TokenReused,
    /// A successful dry run.
    DryRun,
    /// The instance profile does not exist or is not visible yet.
    ProfileUnknown,
    /// User data exceeds the limit of EC2.
    UserDataTooLarge,
    /// The body of the request exceeds the limit of EC2. A request with fewer alternatives may
    /// succeed.
    RequestTooLarge,
    /// AWS had an internal error, or did not answer.
    Fault,
    /// The request is invalid.
    Invalid,
}

/// An error of a whole call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsFailure {
    /// The kind of the error.
    pub sort: ErrorClass,
    /// The missing IAM action, if a permission is missing.
    pub action: Option<String>,
    /// The message with advice, bounded and without secrets.
    pub text: String,
}

impl AwsFailure {
    /// Returns whether an error about an offering concerns only this offering: the request is wrong
    /// for it, such as its architecture or boot mode, and may be right for others.
    fn refuses_one_offering(&self) -> bool {
        matches!(self.sort, ErrorClass::Invalid | ErrorClass::NotFound)
    }

    /// Converts the error to a failure kind.
    pub fn failure_kind(&self) -> FailureKind {
        match self.sort {
            ErrorClass::Throttled => FailureKind::Throttled,
            ErrorClass::Denied => FailureKind::Denied,
            ErrorClass::NotFound => FailureKind::Gone,
            ErrorClass::TemplateGone | ErrorClass::ProfileUnknown => FailureKind::Conflict,
            ErrorClass::TokenReused | ErrorClass::Fault => FailureKind::Unknown,
            ErrorClass::DryRun
            | ErrorClass::UserDataTooLarge
            | ErrorClass::RequestTooLarge
            | ErrorClass::Invalid => FailureKind::Invalid,
        }
    }

    /// Converts the error to the result of a command.
    pub fn command_result(&self) -> CommandResult {
        CommandResult::Failed { kind: self.failure_kind(), text: self.text.clone() }
    }
}

/// Error codes for throttling, of all services.
pub const THROTTLED: [&str; 9] = [
    // The number of fleets of the account, which EC2 forgets soon after they are created.
    "MaxFleetCountExceeded",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "RequestThrottled",
    "TooManyRequestsException",
    "PriorRequestNotComplete",
    "SlowDown",
];

/// Error codes for missing permissions and invalid credentials.
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

/// Error codes for missing resources. Source: spec/aws.md §5.9.
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

/// Error codes for internal errors of AWS.
const FAULTS: [&str; 6] = [
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "Unavailable",
    "RequestTimeout",
    "InternalServerError",
];

/// Classifies the error of a call. `operation` is the IAM action that the call needs. `status` is
/// the HTTP status. A call without response has neither code nor status.
pub fn classify_error(
    operation: &str,
    code: &str,
    message: &str,
    status: Option<u16>,
) -> AwsFailure {
    let code = code.strip_prefix("Client.").unwrap_or(code);
    let code = code.strip_prefix("Server.").unwrap_or(code);
    let sort = error_class(code, message, status);
    let (action, text) = match sort {
        ErrorClass::Denied => describe_denial(operation, code, message),
        _ => {
            let advice = advice_for(code, message).map(|text| format!(" ({text})"));
            let advice = advice.unwrap_or_default();
            let problem = match (code, message) {
                ("", "") => "no response".to_owned(),
                ("", message) => bounded_message(message),
                (code, "") => code.to_owned(),
                (code, message) => format!("{code}: {}", bounded_message(message)),
            };
            (None, format!("{operation}: {problem}{advice}"))
        }
    };
    AwsFailure { sort, action, text }
}

fn error_class(code: &str, message: &str, status: Option<u16>) -> ErrorClass {
    match code {
        TEMPLATE_GONE => ErrorClass::TemplateGone,
        "IdempotentParameterMismatch" | "IdempotentInstanceTerminated" => ErrorClass::TokenReused,
        "DryRunOperation" => ErrorClass::DryRun,
        "InvalidParameterValue" if message.contains("Invalid IAM Instance Profile name") => {
            ErrorClass::ProfileUnknown
        }
        "InvalidUserData.Malformed" if message.contains("User data is limited to") => {
            ErrorClass::UserDataTooLarge
        }
        "InvalidInput" if message.contains("too large") => ErrorClass::RequestTooLarge,
        "RequestEntityTooLarge" => ErrorClass::RequestTooLarge,
        _ if status == Some(413) => ErrorClass::RequestTooLarge,
        _ if THROTTLED.contains(&code) || status == Some(429) => ErrorClass::Throttled,
        _ if DENIED.contains(&code) || code.starts_with("AuthFailure.") => ErrorClass::Denied,
        _ if NOT_FOUND.contains(&code) => ErrorClass::NotFound,
        _ if FAULTS.contains(&code) || status.is_some_and(|status| status >= 500) => {
            ErrorClass::Fault
        }
        "" => ErrorClass::Fault,
        _ => ErrorClass::Invalid,
    }
}

/// Describes the missing permission, and the policy statement that grants it.
fn describe_denial(operation: &str, code: &str, message: &str) -> (Option<String>, String) {
    let action_named =
        text_between(message, "to perform: ", &[' ', ',', ';']).filter(|name| name.contains(':'));
    let action = action_named.unwrap_or(operation).trim_end_matches('.');
    let arn = text_between(message, "on resource: ", &[' ', ',', ';']).unwrap_or("");
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
        let text = format!("{operation}: {code}: {}", bounded_message(message));
        return (None, text);
    }
    let on = match arn {
        "" => String::new(),
        arn => format!(" on {arn}"),
    };
    let cause = if message.contains("with an explicit deny in a permissions boundary") {
        "denied by a permissions boundary".to_owned()
    } else if message.contains("with an explicit deny in a service control policy") {
        "denied by a service control policy".to_owned()
    } else if message.contains("with an explicit deny") {
        "denied by a policy".to_owned()
    } else if message.contains("Not authorized for images") {
        "the image is not shared with this account".to_owned()
    } else {
        let granted = match operation {
            "ec2:CreateTags" => Some(TAGGING),
            _ => granting_statement(action, arn),
        };
        match granted {
            Some(sid) => format!("granted by statement {sid} of the shipped policy"),
            None => "not granted by any policy".to_owned(),
        }
    };
    let text = format!("not allowed: {action}{on}; {cause}");
    (Some(action.to_owned()), text)
}

/// Advice for errors with unclear messages. Source: spec/aws.md §5.9, reasons.
fn advice_for(code: &str, message: &str) -> Option<&'static str> {
    Some(match code {
        _ if message.contains("belong to different networks") => {
            "security groups and subnets must belong to the same VPC"
        }
        _ if message.contains("iamInstanceProfile.name is invalid") => {
            "the instance profile does not exist"
        }
        _ if message.contains("User data is limited to") => "user data must not exceed 16 KB",
        _ if message.contains("not eligible for Free Tier") => {
            "the account can only launch free tier types"
        }
        "InvalidAMIID.Malformed" => "the image id is malformed",
        "InvalidAMIID.NotFound" => "the image does not exist or is not shared with this account",
        "InvalidLaunchTemplateId.NotFound" => "the launch template was deleted",
        "MaxFleetCountExceeded" => "the fleet request quota of the account is exhausted",
        "Blocked" => "AWS has blocked the account: contact AWS Support",
        "VolumeLimitExceeded" => "the quota of the account for volumes is exhausted",
        "NetworkInterfaceLimitExceeded" => {
            "the quota of the account for network interfaces is exhausted"
        }
        "PendingVerification" => "AWS has not verified the account for this region yet",
        "MaxSpotInstanceCountExceeded" => "the spot instance quota of the account is exhausted",
        "VcpuLimitExceeded" => "the vCPU quota of the account is exhausted",
        "InsufficientFreeAddressesInSubnet" => "the subnet has no free addresses",
        "IdempotentParameterMismatch" => "the client token was used for a different request",
        _ => return None,
    })
}

fn text_between<'m>(text: &'m str, before: &str, ends: &[char]) -> Option<&'m str> {
    let (_, rest) = text.split_once(before)?;
    let rest = rest.split(ends).next()?;
    (!rest.is_empty()).then_some(rest)
}

/// Truncates a message and removes the part encoded for `DecodeAuthorizationMessage`.
fn bounded_message(message: &str) -> String {
    let mut parts = message.split(" Encoded authorization failure message");
    let plain = parts.next().unwrap_or(message).trim();
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

/// The code if a type does not exist in a zone. Without a type or zone, the request is wrong.
const NOT_SOLD: &str = "InvalidFleetConfiguration";

/// The code if a launch template does not exist.
pub const TEMPLATE_GONE: &str = "InvalidLaunchTemplateName.NotFoundException";

/// Part of the message if a spread placement group is full. EC2 reports this as missing capacity.
/// Source: karpenter-provider-aws, pkg/errors.
const SPREAD_LIMIT: &str = "limit of instances in this spread placement group";

/// An error in the response of CreateFleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetError {
    /// Code.
    pub code: String,
    /// Message.
    pub message: String,
    /// The instance type to which the error applies.
    pub instance_type: Option<String>,
    /// The zone to which the error applies.
    pub zone: Option<String>,
    /// The subnet to which the error applies.
    pub subnet: Option<String>,
}

/// Limits of an instance of one type: a larger type may allow more. Source: EC2 API reference,
/// error codes.
const LIMITS_OF_TYPES: [&str; 2] = ["AttachmentLimitExceeded", "PrivateIpAddressLimitExceeded"];

/// Returns whether an unknown error is about the account or a launch template, although EC2 names
/// the offering that it tried. Source: EC2 API reference, error codes.
fn is_of_account_or_template(code: &str) -> bool {
    code.ends_with("LimitExceeded") && !LIMITS_OF_TYPES.contains(&code)
        || code.ends_with("CountExceeded")
        || code.starts_with("InvalidLaunchTemplate")
        || matches!(code, "Blocked" | "PendingVerification" | "ConcurrentTagAccess")
}

impl FleetError {
    /// Returns whether the error applies to an instance type or a zone.
    fn names_offering(&self) -> bool {
        self.instance_type.is_some() || self.zone.is_some()
    }
}

/// Outcome of a CreateFleet call, except the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetOutcome {
    /// Refused offerings. The list may be non-empty even if an instance was launched.
    pub refusals: Vec<OfferingRefusal>,
    /// Subnets without free addresses.
    pub exhausted: BTreeSet<String>,
    /// True if spot is not allowed at all.
    pub spot_denied: bool,
    /// True if EC2 throttled the call. No offering is then treated as refused.
    pub throttled: bool,
    /// True if EC2 reported a launch template as missing.
    pub template_gone: bool,
    /// Unknown errors and exhausted quotas, for the log.
    pub notes: Vec<String>,
    /// Why nothing was launched, if the reason is not missing capacity.
    failure: Option<AwsFailure>,
    /// Offerings that unknown errors refuse.
    odd: BTreeSet<OfferingKey>,
}

/// Returns the refusal of offerings in an error. `None` if the error refuses no offering.
fn refusal_kind(code: &str, message: &str, in_group: bool) -> Option<RefusalKind> {
    Some(match code {
        _ if message.contains(SPREAD_LIMIT) => RefusalKind::PlacementExceeded,
        // A placement group restricts the capacity. Launches without this placement group may
        // succeed with the same offering.
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
        "VcpuLimitExceeded" | "MaxSpotInstanceCountExceeded" | "InstanceLimitExceeded" => {
            RefusalKind::LimitExceeded
        }
        "ReservationCapacityExceeded" => RefusalKind::ReservationExceeded,
        _ if code.starts_with("InvalidCapacityReservation") => RefusalKind::ReservationExceeded,
        "Unsupported" | "UnsupportedOperation" | "InvalidAvailabilityZone" | NOT_SOLD => {
            RefusalKind::Unsupported
        }
        "InsufficientFreeAddressesInSubnet" => RefusalKind::NoAddress,
        SPOT_ROLE => RefusalKind::SpotDenied,
        _ => return None,
    })
}

impl FleetOutcome {
    /// Classifies the errors of a response. A response may contain errors in addition to an
    /// instance; they are classified in the same way (spec §10, 71).
    pub fn from_errors(request: &FleetRequest, errors: &[FleetError]) -> Self {
        let mut configs = request.configs.iter();
        let in_group = configs.any(|config| config.template.placement.group.is_some());
        let mut outcome = Self::default();
        let refused = request.refused.iter();
        let refused = refused.map(|refusal| (refusal.offering.clone(), refusal.kind));
        let mut all: BTreeMap<OfferingKey, RefusalKind> = refused.collect();
        for error in errors {
            outcome.add_error(request, error, in_group, &mut all);
        }
        let all = all.into_iter();
        let refusals = all.map(|(offering, kind)| OfferingRefusal { offering, kind });
        outcome.refusals = refusals.collect();
        outcome.drop_odd_refusals(request);
        outcome
    }

    fn add_error(
        &mut self,
        request: &FleetRequest,
        error: &FleetError,
        in_group: bool,
        all: &mut BTreeMap<OfferingKey, RefusalKind>,
    ) {
        let code = error.code.as_str();
        let known = refusal_kind(code, &error.message, in_group);
        let is_known = known.is_some() && (code != NOT_SOLD || error.names_offering());
        let kind = match known.filter(|_| is_known) {
            Some(kind) => kind,
            None => {
                let failure = classify_error("ec2:CreateFleet", code, &error.message, None);
                let is_gone = code == TEMPLATE_GONE;
                self.throttled |= failure.sort == ErrorClass::Throttled;
                self.template_gone |= is_gone;
                self.add_note(failure.text.clone());
                let is_of_offering = error.names_offering()
                    && failure.refuses_one_offering()
                    && !is_of_account_or_template(code);
                self.failure.get_or_insert(failure);
                if !is_of_offering {
                    return;
                }
                RefusalKind::Unsupported
            }
        };
        match kind {
            RefusalKind::NoAddress => self.exhausted.extend(error.subnet.clone()),
            RefusalKind::SpotDenied => {
                self.spot_denied = true;
                self.add_note(SPOT_ADVICE.to_owned());
            }
            RefusalKind::LimitExceeded => {
                let advice = advice_for(code, &error.message).unwrap_or(code);
                self.add_note(advice.to_owned());
            }
            _ => {}
        }
        // A denial of spot applies to all offerings. A full spread placement group refuses all
        // types in its zone.
        let by_type =
            !matches!(kind, RefusalKind::SpotDenied) && !error.message.contains(SPREAD_LIMIT);
        let by_zone = !matches!(kind, RefusalKind::SpotDenied);
        let name = error.instance_type.as_deref().filter(|_| by_type);
        let zone = error.zone.as_deref().filter(|_| by_zone);
        let subnet = error.subnet.as_deref().filter(|_| by_zone);
        for requested in request.overrides() {
            let key = &requested.offering;
            if name.is_none_or(|name| name == key.instance_type.as_str())
                && zone.is_none_or(|zone| zone == key.zone.as_str())
                && subnet.is_none_or(|subnet| subnet == requested.subnet)
            {
                if is_known {
                    self.odd.remove(key);
                } else if all.contains_key(key) && !self.odd.contains(key) {
                    // A known reason says more.
                    continue;
                } else {
                    self.odd.insert(key.clone());
                }
                all.insert(key.clone(), kind);
            }
        }
    }

    /// If unknown errors refuse every on-demand alternative of several types, the request is wrong
    /// and not the offerings. They are then not refused, because they would stay in back-off after
    /// the cause is fixed. Refused spot offerings and reservations stay refused: otherwise the next
    /// plan would choose them again, and never on-demand offerings.
    fn drop_odd_refusals(&mut self, request: &FleetRequest) {
        let mut types = BTreeSet::new();
        for requested in request.overrides() {
            let offering = &requested.offering;
            if offering.capacity_type != CapacityType::OnDemand || !self.odd.contains(offering) {
                return;
            }
            types.insert(&offering.instance_type);
        }
        if types.len() > 1 {
            self.refusals.retain(|refusal| !self.odd.contains(&refusal.offering));
        }
    }

    fn add_note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX && !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// The result if nothing was launched. Missing capacity is a refusal. Other errors are a
    /// failure, unless some offerings were refused: a retry without these offerings may succeed.
    pub fn command_result(&self) -> CommandResult {
        if !self.refusals.is_empty() {
            return CommandResult::LaunchRefused(self.refusals.clone());
        }
        // A response without an instance is final: no instance was created.
        let Some(failure) = &self.failure else {
            return CommandResult::Failed {
                kind: FailureKind::Invalid,
                text: "ec2:CreateFleet: nothing launched and no error returned".to_owned(),
            };
        };
        let kind = match failure.sort {
            ErrorClass::Throttled => FailureKind::Throttled,
            ErrorClass::Denied => FailureKind::Denied,
            _ => FailureKind::Invalid,
        };
        let text = failure.text.clone();
        CommandResult::Failed { kind, text }
    }
}
