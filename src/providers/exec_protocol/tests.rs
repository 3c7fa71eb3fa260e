//! Messages of the exec protocol: invalid lines, and every message of `docs/PROVIDERS.md`.

use jiff::SignedDuration;
use proptest::prelude::{any, proptest};
use serde_json::Value;

use super::{
    ClusterScope, Expect, LaunchCall, ProviderCall, parse_hello, parse_response, request_line,
    response_id,
};
use crate::model::claim::{ClaimOrigin, ClaimRecord};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::{Labels, TAINT_UNREGISTERED};
use crate::model::taint::{Effect, Taint};
use crate::provider::{CommandResult, Launch};

#[test]
fn arbitrary_protocol_lines_do_not_panic() {
    let scope = ClusterScope { installation: "here".to_owned(), cluster: "prod".into() };
    let offering = OfferingKey {
        instance_type: "small".into(),
        zone: "a".into(),
        capacity_type: CapacityType::OnDemand,
        reservation: None,
    };
    let expects = [Expect::Launch("c-1".into(), vec![offering]), Expect::Terminate, Expect::List];
    let good = concat!(
        r#"{"id":1,"answer":{"launched":{"id":"i-1","instance_type":"small","zone":"a","#,
        r#""capacity_type":"on-demand","state":"running","launched":"2026-01-01T00:00:00Z","#,
        r#""tags":{"a":"b"}}}}"#
    );
    proptest!(|(at in 0..good.len(), to in any::<u8>(), cut in 0..good.len(), noise: Vec<u8>)| {
        let mut line = good.as_bytes().to_vec();
        line[at] = to;
        for line in [&line[..], &line[..cut], &noise] {
            drop((response_id(line), parse_hello(line)));
            for expect in &expects {
                drop(parse_response(line, expect, &scope));
            }
        }
    });
}

/// A listing of one instance with this node.
fn listing(node: &str) -> String {
    let tags = r#"{"outrigger.dev/installation":"here","outrigger.dev/cluster":"prod"}"#;
    format!(
        r#"{{"id":1,"answer":{{"instances":[{{"id":"vm-1","instance_type":"small","zone":"a",
        "capacity_type":"on-demand","state":"running","launched":"2026-01-01T00:00:00Z",
        "tags":{tags},"node":{node}}}]}}}}"#
    )
}

#[test]
fn node_of_an_instance_must_have_a_valid_name_and_provider_id() {
    let scope = ClusterScope { installation: "here".to_owned(), cluster: "prod".into() };
    let node_of = |node: &str| {
        let line = listing(node);
        match parse_response(line.as_bytes(), &Expect::List, &scope) {
            Ok((CommandResult::Instances(instances), _)) => Ok(instances[0].node.clone()),
            Ok((other, _)) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    };
    let json = |name: &str, id: &str| format!(r#"{{"name":"{name}","provider_id":"{id}"}}"#);
    assert_eq!(node_of("null"), Ok(None));
    let node = node_of(&json("vm-1.lab", "cloud:///vm-1")).expect("a node");
    assert_eq!(node.expect("a node").name.as_str(), "vm-1.lab");
    for (name, id) in [
        ("VM", "cloud:///vm-1"),
        ("", "cloud:///vm-1"),
        ("a..b", "cloud:///vm-1"),
        ("-a", "cloud:///vm-1"),
        ("vm-1", "cloud:///vm-2"),
        ("vm-1", "cloud:///other-vm-1"),
        ("vm-1", "vm-1"),
    ] {
        assert!(node_of(&json(name, id)).is_err(), "{name} {id}");
    }
}

/// The request of each verb in `docs/PROVIDERS.md`, as Outrigger would send it, and the expectation
/// on its response.
fn documented(scope: &ClusterScope) -> Vec<(Vec<u8>, Option<Expect>)> {
    let claim = ClaimRecord {
        id: "general-7c9k2".into(),
        installation: scope.installation.clone(),
        cluster: scope.cluster.clone(),
        origin: ClaimOrigin::default(),
        pool: "general".into(),
        node_class: Some("default".into()),
        created: "2026-07-01T06:00:00Z".parse().expect("a time"),
        expire_after: Some(SignedDuration::from_hours(720)),
        expire_hard_after: None,
        termination_grace_period: None,
        pool_hash: "v1:8f2c".to_owned(),
        node_class_hash: "v1:03aa".to_owned(),
        startup_taints: Vec::new(),
        reason: "pods".to_owned(),
        command_id: "41".to_owned(),
    };
    let mut tags = claim.to_tags();
    tags.insert("team".to_owned(), "shop".to_owned());
    let offerings = [("eu-1", CapacityType::Spot), ("eu-2", CapacityType::OnDemand)]
        .map(|(zone, capacity_type)| OfferingKey {
            instance_type: "s-4x".into(),
            zone: zone.into(),
            capacity_type,
            reservation: None,
        })
        .to_vec();
    let expect = Expect::Launch(claim.id.clone(), offerings.clone());
    let launch = Launch {
        claim,
        offerings,
        labels: Labels::from([("karpenter.sh/nodepool".to_owned(), "general".to_owned())]),
        taints: vec![Taint::new(TAINT_UNREGISTERED, Effect::NoExecute)],
        tags,
        devices: Default::default(),
        overlaid: false,
        relaxed: false,
        varied: false,
    };
    let user_data = "#!/bin/sh\nexec /usr/local/bin/join\n".to_owned();
    let terminate = ProviderCall::Terminate {
        claim: "general-7c9k2".to_owned(),
        instance: "vm-1042".to_owned(),
    };
    let launch = ProviderCall::Launch(Box::new(LaunchCall::new(launch, user_data)));
    let hello = ProviderCall::Hello { protocols: [1] };
    let calls = [
        (hello, None),
        (launch, Some(expect)),
        (terminate, Some(Expect::Terminate)),
        (ProviderCall::List {}, Some(Expect::List)),
    ];
    let lines = (0..).zip(calls).map(|(id, (call, expect))| {
        let remaining = if id == 0 { 0 } else { 60_000 };
        let line = request_line(id, remaining, scope, &call);
        (line.expect("a line"), expect)
    });
    lines.collect()
}

#[test]
fn documentation_shows_the_protocol_messages() {
    let text = include_str!("../../../docs/PROVIDERS.md");
    let scope = ClusterScope { installation: "platform-eu".to_owned(), cluster: "lab".into() };
    let documented = documented(&scope);
    let (mut requests, mut answers) = (0, 0);
    for block in text.split("```json\n").skip(1) {
        let (block, _) = block.split_once("```").expect("the block ends");
        let value: Value = serde_json::from_str(block).expect(block);
        let id = value["id"].as_u64().and_then(|id| usize::try_from(id).ok());
        let (line, expect) = &documented[id.expect("an id")];
        if value["verb"].is_string() {
            let sent: Value = serde_json::from_slice(line).expect("JSON");
            assert_eq!(value, sent, "{sent:#}");
            requests += 1;
            continue;
        }
        assert_eq!(response_id(block.as_bytes()).ok(), id.map(|id| id as u64));
        let error = match expect {
            None => parse_hello(block.as_bytes()).map(drop),
            Some(expect) => parse_response(block.as_bytes(), expect, &scope).map(drop),
        }
        .err();
        assert!(error.is_none(), "{block}: {error:?}");
        answers += 1;
    }
    assert_eq!((requests, answers), (documented.len(), 6));
}
