//! Dry runs of node classes, and their results.

use outrigger::catalog::Catalog;
use outrigger::ec2::dry_run::{
    DryRunResult, TRIES, dry_run_launch, dry_run_offerings, dry_run_result,
};
use outrigger::model::cluster::Cluster;
use outrigger::model::instance::CapacityType;
use outrigger::model::labels::{INSTANCE_TYPE, ZONE};
use outrigger::model::node_class::NodeClass;
use outrigger::model::node_class::resolved::Cause;
use outrigger::model::pool::Pool;
use outrigger::model::requirement::Requirement;

const RUN: &str = "ec2:RunInstances";

#[test]
fn dry_run_uses_the_first_offerings_of_the_pool() {
    let catalog = Catalog::shipped();
    let mut pool = Pool::new("general");
    let types = ["m5.large", "m5.xlarge", "m5.2xlarge", "m5.4xlarge"];
    pool.requirements.add(INSTANCE_TYPE, Requirement::is_in(types));
    let chosen = dry_run_offerings(&pool, &catalog);
    let names: Vec<&str> = chosen.iter().map(|own| own.instance_type.as_str()).collect();
    assert_eq!(names, types[..TRIES], "the cheapest first, no type twice");
    let zones: std::collections::BTreeSet<_> = chosen.iter().map(|own| &own.zone).collect();
    assert_eq!(zones.len(), TRIES, "{chosen:?}");
    let bought = |own: &_| matches!(own, CapacityType::OnDemand);
    assert!(chosen.iter().all(|own| bought(&own.capacity_type)));
    let zone = chosen[1].zone.as_str();
    pool.requirements.add(ZONE, Requirement::is_in([zone]));
    assert!(dry_run_offerings(&pool, &catalog).iter().all(|own| own.zone.as_str() == zone));
    pool.requirements.add(ZONE, Requirement::is_in(["nowhere"]));
    assert_eq!(dry_run_offerings(&pool, &catalog), []);
}

#[test]
fn dry_run_launch_has_the_tags_of_a_launch() {
    let class = NodeClass {
        name: "c".into(),
        tags: [("team".to_owned(), "blue".to_owned())].into(),
        ..NodeClass::default()
    };
    let mut pool = Pool::new("general");
    pool.node_class = Some("c".into());
    let cluster = Cluster {
        installation: "here".into(),
        name: "prod".into(),
        node_classes: vec![class],
        pools: vec![pool.clone()],
        ..Cluster::default()
    };
    let offering = dry_run_offerings(&pool, &Catalog::shipped()).remove(0);
    let own = dry_run_launch(&cluster, &pool, offering.clone());
    for (key, value) in [
        ("team", "blue"),
        ("outrigger.dev/installation", "here"),
        ("outrigger.dev/cluster", "prod"),
        ("karpenter.sh/nodepool", "general"),
    ] {
        assert_eq!(own.tags[key], value, "{key}");
    }
    assert_eq!(own, dry_run_launch(&cluster, &pool, offering), "the launch is deterministic");
}

/// Code, message, status; the cause of the rejection, or `None` if the class is not rejected.
const RESULTS: &[(&str, &str, Option<u16>, Option<Cause>)] = &[
    ("UnauthorizedOperation", "", None, Some(Cause::Denied)),
    ("InvalidUserData.Malformed", LONG, None, Some(Cause::UserDataTooLarge)),
    ("InvalidUserData.Malformed", "x", None, Some(Cause::LaunchInvalid)),
    ("InvalidParameterValue", NAME, None, Some(Cause::InstanceProfileNotFound)),
    ("InvalidParameterValue", PROFILE, None, Some(Cause::InstanceProfileNotFound)),
    ("InvalidParameter", VPC, None, Some(Cause::LaunchInvalid)),
    ("InvalidAMIID.NotFound", "", None, Some(Cause::LaunchInvalid)),
    ("InvalidGroup.NotFound", "", None, Some(Cause::LaunchInvalid)),
    ("InvalidSnapshot.NotFound", "", None, Some(Cause::LaunchInvalid)),
    ("InvalidBlockDeviceMapping", "", None, Some(Cause::LaunchInvalid)),
    ("InvalidSubnetID.NotFound", "", None, None),
    ("Unsupported", "", None, None),
    ("VcpuLimitExceeded", "", None, None),
    ("InvalidParameterCombination", "not eligible for Free Tier", None, None),
    ("InvalidLaunchTemplateName.NotFoundException", "", None, None),
    ("RequestLimitExceeded", "", None, None),
    ("Whatever", "", Some(503), None),
    ("", "", None, None),
];

const LONG: &str = "User data is limited to 16384 bytes";
const NAME: &str = "Invalid IAM Instance Profile name";
const PROFILE: &str = "Value (p) for parameter iamInstanceProfile.name is invalid";
const VPC: &str = "sg-1 and subnet-1 belong to different networks";

#[test]
fn dry_run_error_rejects_the_class_only_if_the_class_caused_it() {
    for (code, message, status, expect) in RESULTS {
        match (dry_run_result(RUN, code, message, *status), expect) {
            (DryRunResult::Refused(cause, text), Some(expect)) => {
                assert_eq!(cause, *expect, "{code} {message}");
                assert!(text.contains(RUN), "{code}: {text}");
            }
            (DryRunResult::Open(text), None) => assert!(text.contains(RUN), "{code}: {text}"),
            (other, _) => panic!("{code} {message}: {other:?}"),
        }
    }
    let passed = dry_run_result(RUN, "DryRunOperation", "", Some(412));
    assert_eq!(passed, DryRunResult::Passed);
}
