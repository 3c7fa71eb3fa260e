//! Classification of each EC2 error.

use outrigger::ec2::create_fleet::FleetRequest;
use outrigger::ec2::errors::{AwsFailure, ErrorClass, FleetError, FleetOutcome, classify_error};
use outrigger::ec2::iam_policy::STATEMENTS;
use outrigger::model::node_class::resolved::{PlacementGroup, PlacementGroupStrategy};
use outrigger::model::reservation::Reservation;
use outrigger::provider::{CommandResult, FailureKind, RefusalKind};

use super::fixture::Scene;

const FLEET: &str = "ec2:CreateFleet";
const NAME: &str = "Invalid IAM Instance Profile name";
const LONG: &str = "User data is limited to 16384 bytes";
const VPC: &str = "Security group sg-1 and subnet subnet-1 belong to different networks.";

fn classify(code: &str, message: &str, status: Option<u16>) -> AwsFailure {
    classify_error(FLEET, code, message, status)
}

/// Code, message, HTTP status; the error class, the failure kind, and a part of the text.
type Row = (&'static str, &'static str, Option<u16>, ErrorClass, FailureKind, &'static str);

const CALLS: &[Row] = &[
    ("RequestLimitExceeded", "slow", None, ErrorClass::Throttled, FailureKind::Throttled, "slow"),
    ("Client.RequestLimitExceeded", "", None, ErrorClass::Throttled, FailureKind::Throttled, ""),
    ("Throttling", "", None, ErrorClass::Throttled, FailureKind::Throttled, ""),
    ("MaxFleetCountExceeded", "", None, ErrorClass::Throttled, FailureKind::Throttled, "quota"),
    ("ThrottlingException", "", None, ErrorClass::Throttled, FailureKind::Throttled, ""),
    ("TooManyRequestsException", "", None, ErrorClass::Throttled, FailureKind::Throttled, ""),
    ("", "", Some(429), ErrorClass::Throttled, FailureKind::Throttled, ""),
    ("UnauthorizedOperation", "", None, ErrorClass::Denied, FailureKind::Denied, "ec2:CreateFleet"),
    ("AccessDenied", "", None, ErrorClass::Denied, FailureKind::Denied, ""),
    ("AccessDeniedException", "", None, ErrorClass::Denied, FailureKind::Denied, ""),
    ("AuthFailure", "clock", None, ErrorClass::Denied, FailureKind::Denied, "AuthFailure: clock"),
    ("ExpiredToken", "old", None, ErrorClass::Denied, FailureKind::Denied, "ExpiredToken: old"),
    (
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        "",
        None,
        ErrorClass::Denied,
        FailureKind::Denied,
        "AWSServiceRoleForEC2Spot",
    ),
    ("InvalidInstanceID.NotFound", "", None, ErrorClass::NotFound, FailureKind::Gone, ""),
    (
        "InvalidCapacityReservationId.NotFound",
        "",
        None,
        ErrorClass::NotFound,
        FailureKind::Gone,
        "",
    ),
    (
        "InvalidLaunchTemplateId.NotFound",
        "",
        None,
        ErrorClass::NotFound,
        FailureKind::Gone,
        "was deleted",
    ),
    ("QueueDoesNotExist", "", None, ErrorClass::NotFound, FailureKind::Gone, ""),
    ("NoSuchEntity", "", None, ErrorClass::NotFound, FailureKind::Gone, ""),
    ("ParameterNotFound", "", None, ErrorClass::NotFound, FailureKind::Gone, ""),
    (
        "InvalidLaunchTemplateName.NotFoundException",
        "",
        None,
        ErrorClass::TemplateGone,
        FailureKind::Conflict,
        "",
    ),
    (
        "IdempotentParameterMismatch",
        "",
        None,
        ErrorClass::TokenReused,
        FailureKind::Unknown,
        "token",
    ),
    ("DryRunOperation", "", None, ErrorClass::DryRun, FailureKind::Invalid, ""),
    ("InvalidParameterValue", NAME, None, ErrorClass::ProfileUnknown, FailureKind::Conflict, NAME),
    ("InvalidParameterValue", "other", None, ErrorClass::Invalid, FailureKind::Invalid, "other"),
    (
        "InvalidUserData.Malformed",
        LONG,
        None,
        ErrorClass::UserDataTooLarge,
        FailureKind::Invalid,
        "16 KB",
    ),
    (
        "InvalidInput",
        "The request failed because the payload for the body of the request is too large.",
        None,
        ErrorClass::RequestTooLarge,
        FailureKind::Invalid,
        "too large",
    ),
    ("InvalidInput", "other", None, ErrorClass::Invalid, FailureKind::Invalid, "other"),
    ("Unknown", "x", Some(413), ErrorClass::RequestTooLarge, FailureKind::Invalid, "Unknown: x"),
    ("InvalidUserData.Malformed", "x", None, ErrorClass::Invalid, FailureKind::Invalid, "x"),
    ("InternalError", "", None, ErrorClass::Fault, FailureKind::Unknown, ""),
    ("ServiceUnavailable", "", None, ErrorClass::Fault, FailureKind::Unknown, ""),
    ("Whatever", "", Some(503), ErrorClass::Fault, FailureKind::Unknown, ""),
    ("", "", None, ErrorClass::Fault, FailureKind::Unknown, "no response"),
    ("", "timed out", None, ErrorClass::Fault, FailureKind::Unknown, "timed out"),
    ("Whatever", "x", Some(400), ErrorClass::Invalid, FailureKind::Invalid, "Whatever: x"),
    ("InvalidParameter", VPC, None, ErrorClass::Invalid, FailureKind::Invalid, "to the same VPC"),
    (
        "InvalidParameterValue",
        "iamInstanceProfile.name is invalid",
        None,
        ErrorClass::Invalid,
        FailureKind::Invalid,
        "the instance profile does not exist",
    ),
    (
        "InvalidAMIID.Malformed",
        "",
        None,
        ErrorClass::Invalid,
        FailureKind::Invalid,
        "image id is malformed",
    ),
    (
        "InvalidAMIID.NotFound",
        "",
        None,
        ErrorClass::Invalid,
        FailureKind::Invalid,
        "the image does not exist",
    ),
    (
        "PendingVerification",
        "",
        None,
        ErrorClass::Invalid,
        FailureKind::Invalid,
        "has not verified",
    ),
    (
        "InvalidParameterCombination",
        "The type is not eligible for Free Tier",
        None,
        ErrorClass::Invalid,
        FailureKind::Invalid,
        "free tier",
    ),
];

#[test]
fn call_errors_are_classified() {
    for (code, message, status, sort, kind, text) in CALLS {
        let own = classify(code, message, *status);
        assert_eq!((own.sort, own.failure_kind()), (*sort, *kind), "{code} {message}");
        assert!(own.text.contains(text), "{code}: {}", own.text);
        let answer = CommandResult::Failed { kind: *kind, text: own.text.clone() };
        assert_eq!(own.command_result(), answer);
    }
}

fn unauthorized(action: &str, resource: &str, why: &str) -> String {
    format!(
        "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/o/i \
         is not authorized to perform: {action} on resource: {resource} {why}. Encoded \
         authorization failure message: {}",
        "x".repeat(3000)
    )
}

#[test]
fn denied_call_names_the_action_and_its_granting_statement() {
    let no = "because no identity-based policy allows the action";
    let boundary = "with an explicit deny in a permissions boundary";
    let scp = "with an explicit deny in a service control policy";
    let arn = |kind: &str| format!("arn:aws:ec2:eu-west-1:1:{kind}/x-1");
    let cases = [
        (
            unauthorized("ec2:RunInstances", &arn("image"), no),
            "ec2:RunInstances",
            "AllowScopedEC2InstanceAccessActions",
        ),
        (
            unauthorized("ec2:RunInstances", &arn("launch-template"), no),
            "ec2:RunInstances",
            "AllowScopedEC2LaunchTemplateAccessActions",
        ),
        (
            unauthorized("ec2:RunInstances", &arn("instance"), no),
            "ec2:RunInstances",
            "AllowScopedEC2InstanceActionsWithTags",
        ),
        (
            unauthorized("iam:PassRole", "arn:aws:iam::1:role/nodes", no),
            "iam:PassRole",
            "AllowPassingInstanceRole",
        ),
        (
            unauthorized("ec2:CreateTags", &arn("instance"), no),
            "ec2:CreateTags",
            "AllowScopedResourceCreationTagging",
        ),
        (
            unauthorized("ec2:CreateFleet", &arn("fleet"), boundary),
            "ec2:CreateFleet",
            "denied by a permissions boundary",
        ),
        (
            unauthorized("ec2:CreateFleet", &arn("fleet"), scp),
            "ec2:CreateFleet",
            "denied by a service control policy",
        ),
        (
            "Not authorized for images: [ami-1]".to_owned(),
            "ec2:CreateFleet",
            "the image is not shared with this account",
        ),
        (
            unauthorized("kms:CreateGrant", "arn:aws:kms:eu-west-1:1:key/k", no),
            "kms:CreateGrant",
            "not granted by any policy",
        ),
        ("denied".to_owned(), "ec2:CreateFleet", "AllowScopedEC2InstanceActionsWithTags"),
    ];
    for (message, action, expect) in cases {
        let own = classify("UnauthorizedOperation", &message, Some(403));
        assert_eq!(own.action.as_deref(), Some(action));
        assert!(own.text.contains(expect), "{}", own.text);
        assert!(own.text.contains(action) && own.text.len() < 500, "{}", own.text);
    }
}

#[test]
fn every_policy_statement_grants_actions_named_in_denials() {
    for own in STATEMENTS {
        assert!(!own.actions.is_empty(), "{}", own.sid);
        for action in own.actions {
            let denied = classify_error(action, "UnauthorizedOperation", "", None);
            assert!(denied.text.contains("of the shipped policy"), "{}", denied.text);
        }
    }
}

/// Two types in two zones.
fn request(way: &str) -> FleetRequest {
    let offerings = ["m5.large a", "m5.large b", "m5.xlarge a", "m5.xlarge b"];
    let offerings = offerings.map(|own| format!("{own} {way}"));
    let offerings: Vec<&str> = offerings.iter().map(String::as_str).collect();
    Scene::new().with_offerings(&offerings).request()
}

/// Returns an error about `type zone subnet`, `-` for none.
fn error(code: &str, message: &str, about: &str) -> FleetError {
    let mut parts = about.split(' ');
    let mut part = || parts.next().filter(|own| *own != "-").map(str::to_owned);
    let (instance_type, zone, subnet) = (part(), part(), part());
    FleetError {
        code: code.to_owned(),
        message: message.to_owned(),
        instance_type,
        zone: zone.map(|own| format!("us-east-1{own}")),
        subnet: subnet.map(|own| format!("subnet-{own}")),
    }
}

/// Refusals as `type zone kind`.
fn refusals(outcome: &FleetOutcome) -> Vec<String> {
    let one = |own: &outrigger::provider::OfferingRefusal| {
        let zone = own.offering.zone.as_str().trim_start_matches("us-east-1");
        format!("{} {zone} {}", own.offering.instance_type, own.kind.as_str())
    };
    outcome.refusals.iter().map(one).collect()
}

const SPREAD: &str = "You've reached the limit of instances in this spread placement group. A \
    spread placement group can have up to seven instances per Availability Zone.";
const SPOT_ROLE: &str = "AuthFailure.ServiceLinkedRoleCreationNotPermitted";

/// Code, message and subject of an error; the refusals.
const ITEMS: &[(&str, &str, &str, &[&str])] = &[
    ("InsufficientInstanceCapacity", "", "m5.large a", &["m5.large a insufficient-capacity"]),
    (
        "UnfulfillableCapacity",
        "",
        "m5.large -",
        &["m5.large a insufficient-capacity", "m5.large b insufficient-capacity"],
    ),
    ("MaxSpotInstanceCountExceeded", "", "m5.large a", &["m5.large a limit-exceeded"]),
    ("VcpuLimitExceeded", "", "m5.xlarge b", &["m5.xlarge b limit-exceeded"]),
    ("MaxFleetCountExceeded", "", "- -", &[]),
    ("Unsupported", "", "m5.large b", &["m5.large b unsupported"]),
    ("InsufficientFreeAddressesInSubnet", "", "m5.large a a1", &["m5.large a no-address"]),
    ("InsufficientFreeAddressesInSubnet", "", "m5.large a a2", &[]),
    (
        "ReservationCapacityExceeded",
        "",
        "m5.large a",
        &["m5.large a reservation-capacity-exceeded"],
    ),
    (
        SPOT_ROLE,
        "",
        "m5.large a",
        &[
            "m5.large a spot-denied",
            "m5.large b spot-denied",
            "m5.xlarge a spot-denied",
            "m5.xlarge b spot-denied",
        ],
    ),
    (
        "InsufficientInstanceCapacity",
        SPREAD,
        "m5.large a",
        &["m5.large a placement-exceeded", "m5.xlarge a placement-exceeded"],
    ),
    ("RequestLimitExceeded", "", "m5.large a", &[]),
    ("InternalError", "", "m5.large a", &[]),
    ("UnauthorizedOperation", "", "m5.large a", &[]),
    ("InvalidLaunchTemplateName.NotFoundException", "", "m5.large a", &[]),
    ("InvalidFleetConfiguration", "", "m5.large b", &["m5.large b unsupported"]),
    ("InvalidFleetConfiguration", "", "- -", &[]),
    ("InvalidLaunchTemplateId.NotFound", "", "m5.large a", &[]),
    // The request is wrong for this type or zone.
    ("InvalidParameterValue", "The boot mode", "m5.large b", &["m5.large b unsupported"]),
    ("InvalidParameterCombination", "", "m5.large b", &["m5.large b unsupported"]),
    ("InvalidAMIID.NotFound", "", "m5.xlarge a", &["m5.xlarge a unsupported"]),
    ("InvalidSubnetID.NotFound", "", "- a", &["m5.large a unsupported", "m5.xlarge a unsupported"]),
    ("InvalidBlockDeviceMapping", "", "m5.large a", &["m5.large a unsupported"]),
    ("EncryptedVolumesNotSupported", "", "m5.large a", &["m5.large a unsupported"]),
    ("InvalidVirtualizationType", "", "m5.large a", &["m5.large a unsupported"]),
    ("NonEBSInstance", "", "m5.large a", &["m5.large a unsupported"]),
    ("InsufficientHostCapacity", "", "m5.large a", &["m5.large a insufficient-capacity"]),
    ("InsufficientCapacity", "", "m5.large a", &["m5.large a insufficient-capacity"]),
    ("InsufficientCapacityOnHost", "", "m5.large a", &["m5.large a insufficient-capacity"]),
    (
        "InsufficientReservedInstanceCapacity",
        "",
        "m5.large a",
        &["m5.large a insufficient-capacity"],
    ),
    ("SpotMaxPriceTooLow", "", "m5.large a", &["m5.large a insufficient-capacity"]),
    ("InstanceLimitExceeded", "", "m5.large a", &["m5.large a limit-exceeded"]),
    ("UnsupportedOperation", "", "m5.large b", &["m5.large b unsupported"]),
    ("InvalidAvailabilityZone", "", "- b", &["m5.large b unsupported", "m5.xlarge b unsupported"]),
    // The account is at fault, and no offering.
    ("PendingVerification", "", "m5.large a", &[]),
    ("Blocked", "", "m5.large a", &[]),
    ("OptInRequired", "", "m5.large a", &[]),
    ("VolumeLimitExceeded", "", "m5.large a", &[]),
    ("MaxIOPSLimitExceeded", "", "m5.large a", &[]),
    ("NetworkInterfaceLimitExceeded", "", "m5.large a", &[]),
    ("ResourceLimitExceeded", "", "m5.large a", &[]),
    ("TagLimitExceeded", "", "m5.large a", &[]),
    // Limits of an instance, which depend on its type.
    ("AttachmentLimitExceeded", "", "m5.large a", &["m5.large a unsupported"]),
    ("PrivateIpAddressLimitExceeded", "", "m5.large a", &["m5.large a unsupported"]),
    (
        "InvalidCapacityReservationId.NotFound",
        "",
        "m5.large a",
        &["m5.large a reservation-capacity-exceeded"],
    ),
    ("MaxSpotFleetRequestCountExceeded", "", "m5.large a", &[]),
    ("ConcurrentTagAccess", "", "m5.large a", &[]),
    ("ServiceUnavailable", "", "m5.large a", &[]),
    ("Unavailable", "", "m5.large a", &[]),
    ("Odd", "", "m5.large a", &["m5.large a unsupported"]),
    // It is wrong for all.
    ("InvalidParameterValue", "", "- -", &[]),
    ("Odd", "", "- -", &[]),
    ("InsufficientInstanceCapacity", "", "m9.large a", &[]),
];

#[test]
fn fleet_errors_refuse_the_offerings_they_concern() {
    for (code, message, about, expect) in ITEMS {
        let outcome = FleetOutcome::from_errors(&request("spot"), &[error(code, message, about)]);
        assert_eq!(refusals(&outcome), *expect, "{code} {about}");
        assert_eq!(outcome.spot_denied, *code == SPOT_ROLE);
        let throttles = ["RequestLimitExceeded", "MaxFleetCountExceeded"];
        assert_eq!(outcome.throttled, throttles.contains(code));
        assert_eq!(outcome.template_gone, code.starts_with("InvalidLaunchTemplateName"));
        let exhausted: Vec<&str> = outcome.exhausted.iter().map(String::as_str).collect();
        let subnet = about.split(' ').nth(2).map(|own| format!("subnet-{own}"));
        assert_eq!(exhausted, Vec::from_iter(subnet.as_deref()));
    }
}

/// An unknown error of every on-demand alternative is an error of the request. The cause is
/// reported, and launches are repeated once it is fixed.
#[test]
fn unknown_error_of_all_offerings_refuses_none() {
    let all = ["m5.large a", "m5.large b", "m5.xlarge a", "m5.xlarge b"];
    let gone = |about: &str| error("InvalidAMIID.NotFound", "ami-1", about);
    let errors = all.map(gone);
    let outcome = FleetOutcome::from_errors(&request("on-demand"), &errors);
    let CommandResult::Failed { kind, text } = outcome.command_result() else {
        panic!("{outcome:?}");
    };
    assert_eq!((kind, refusals(&outcome)), (FailureKind::Invalid, vec![]));
    assert!(text.contains("the image does not exist"), "{text}");
    // As long as one offering is refused for a different reason, others may succeed. The order of
    // the errors does not matter.
    let ice = error("InsufficientInstanceCapacity", "", all[3]);
    let ice = [ice];
    for mixed in [[&errors[..], &ice].concat(), [&ice, &errors[..]].concat()] {
        let outcome = FleetOutcome::from_errors(&request("on-demand"), &mixed);
        assert_eq!(refusals(&outcome).len(), 4);
        assert_eq!(refusals(&outcome)[3], "m5.xlarge b insufficient-capacity");
    }
    let outcome = FleetOutcome::from_errors(&request("on-demand"), &errors[..3]);
    assert_eq!(refusals(&outcome).len(), 3);
}

/// Without a refusal, the next plan would choose the same spot offerings, the same reservation or
/// the same type again, and no other.
#[test]
fn unknown_error_of_the_only_way_to_launch_refuses_it() {
    let mut reserved = Scene::new()
        .with_reservation(Reservation::new("cr-1", 1))
        .with_offerings(&["m5.large a reserved cr-1"]);
    let rows: [(FleetRequest, usize); 3] = [
        (request("spot"), 4),
        (
            Scene::new()
                .with_offerings(&["m5.large a on-demand", "m5.large b on-demand"])
                .request(),
            2,
        ),
        (reserved.request(), 1),
    ];
    for (request, count) in rows {
        let odd = |about: &str| error("InvalidParameterValue", "odd", about);
        let errors = ["m5.large a", "m5.large b", "m5.xlarge a", "m5.xlarge b"].map(odd);
        let outcome = FleetOutcome::from_errors(&request, &errors);
        assert_eq!(refusals(&outcome).len(), count, "{outcome:?}");
        assert!(matches!(outcome.command_result(), CommandResult::LaunchRefused(_)));
    }
}

#[test]
fn launch_without_an_instance_is_refused_or_failed() {
    let ice = error("InsufficientInstanceCapacity", "", "m5.large a");
    let odd = error("InvalidParameter", "something", "- -");
    let slow = error("RequestLimitExceeded", "", "m5.large b");
    let internal = error("InternalError", "", "m5.large b");
    let no = error(
        "UnauthorizedOperation",
        "is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/n because",
        "- -",
    );
    type Case<'a> = (&'a [FleetError], Option<(FailureKind, &'static str)>);
    let cases: [Case<'_>; 8] = [
        (std::slice::from_ref(&ice), None),
        (&[ice.clone(), odd.clone()], None),
        (&[odd.clone(), ice.clone()], None),
        (&[odd], Some((FailureKind::Invalid, "something"))),
        (&[slow], Some((FailureKind::Throttled, "RequestLimitExceeded"))),
        // EC2 has responded, so the result is certain.
        (&[internal], Some((FailureKind::Invalid, "InternalError"))),
        (&[no], Some((FailureKind::Denied, "AllowPassingInstanceRole"))),
        (&[], Some((FailureKind::Invalid, "no error returned"))),
    ];
    for (errors, expect) in cases {
        match (FleetOutcome::from_errors(&request("spot"), errors).command_result(), expect) {
            (CommandResult::LaunchRefused(all), None) => {
                assert_eq!(all.len(), 1);
                assert_eq!(all[0].kind, RefusalKind::InsufficientCapacity);
            }
            (CommandResult::Failed { kind, text }, Some((expect, part))) => {
                assert_eq!(kind, expect, "{text}");
                assert!(text.contains(part), "{text}");
            }
            (answer, expect) => panic!("{answer:?}, not {expect:?}"),
        }
    }
}

#[test]
fn offerings_left_out_of_the_request_are_refused_too() {
    let mut scene = Scene::new().with_offerings(&["m5.large a spot", "m5.large c spot"]);
    let ice = error("InsufficientInstanceCapacity", "", "m5.large a");
    let outcome = FleetOutcome::from_errors(&scene.request(), &[ice]);
    let expect = ["m5.large a insufficient-capacity", "m5.large c no-address"];
    assert_eq!(refusals(&outcome), expect);
}

#[test]
fn insufficient_capacity_in_a_placement_group_concerns_the_group() {
    let mut scene = Scene::new();
    scene.resolved.placement_group =
        Some(PlacementGroup { id: "pg-1".into(), strategy: PlacementGroupStrategy::Cluster });
    let ice = error("InsufficientInstanceCapacity", "", "m5.large a");
    let outcome = FleetOutcome::from_errors(&scene.request(), &[ice]);
    assert_eq!(refusals(&outcome), ["m5.large a placement-exceeded"]);
    assert!(!RefusalKind::PlacementExceeded.is_general());
}

#[test]
fn exhausted_reservation_is_refused_and_throttled_one_is_not() {
    let reserves = || {
        let scene = Scene::new().with_offerings(&["m5.large a reserved cr-1"]);
        scene.with_reservation(Reservation::new("cr-1", 3)).request()
    };
    let over = error("ReservationCapacityExceeded", "", "m5.large a");
    let outcome = FleetOutcome::from_errors(&reserves(), &[over]);
    let own = &outcome.refusals[0];
    assert_eq!(own.kind, RefusalKind::ReservationExceeded);
    let id = own.offering.reservation.as_deref();
    assert_eq!(id.map(|own| own.as_str()), Some("cr-1"));
    let slow = error("RequestLimitExceeded", "", "m5.large a");
    assert_eq!(FleetOutcome::from_errors(&reserves(), &[slow]).refusals, []);
}

#[test]
fn notes_list_only_errors_that_operators_can_fix() {
    let errors = [
        error("VcpuLimitExceeded", "", "m5.large a"),
        error("VcpuLimitExceeded", "", "m5.large b"),
        error("MaxFleetCountExceeded", "", "m5.large b"),
        error(SPOT_ROLE, "", "- -"),
        error("Odd", "thing", "m5.large a"),
        error("InsufficientInstanceCapacity", "", "m5.large a"),
    ];
    let notes = FleetOutcome::from_errors(&request("spot"), &errors).notes;
    let expect =
        ["vCPU quota", "fleet request quota", "iam create-service-linked-role", "Odd: thing"];
    assert_eq!(notes.len(), expect.len(), "{notes:?}");
    for (note, part) in notes.iter().zip(expect) {
        assert!(note.contains(part), "{note}");
    }
    let many: Vec<FleetError> =
        (0..50).map(|own| error(&format!("Odd{own}"), &"x".repeat(5000), "- -")).collect();
    let notes = FleetOutcome::from_errors(&request("spot"), &many).notes;
    assert!(notes.len() <= 5 && notes.iter().all(|own| own.len() < 600));
}
