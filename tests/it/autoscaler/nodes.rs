//! Launch sources of node groups are converted, or reported as dropped.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger::migrate::cluster_autoscaler::import::SECRET_NOTE;
use serde_json::{Value, json};

use super::{import_flags, load_imported};

/// Imports an EKS node group with these launch template versions, checks that the result is valid,
/// and returns the HCL.
fn import_node_group(more: &Value, templates: &[Value]) -> String {
    let mut own = json!({
        "nodegroupName": "web",
        "clusterName": "shop",
        "nodegroupArn": "arn:aws:eks:eu-west-1:1:nodegroup/shop/web/1",
        "scalingConfig": {"minSize": 0, "maxSize": 3},
        "instanceTypes": ["m5.large"],
        "subnets": ["subnet-1"],
        "nodeRole": "arn:aws:iam::1:role/nodes",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        own[key] = value.clone();
    }
    // The Auto Scaling group of the node group.
    let template =
        json!({"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-eks", "Version": "1"}});
    let tags = json!([
        {"Key": "eks:nodegroup-name", "Value": "web"},
        {"Key": "eks:cluster-name", "Value": "shop"},
    ]);
    let group = json!({"AutoScalingGroups": [{
        "AutoScalingGroupName": "eks-web",
        "MaxSize": 3,
        "Tags": tags,
        "MixedInstancesPolicy": {"LaunchTemplate": template},
    }]});
    let answers = [json!({"nodegroup": own}), group, json!({"LaunchTemplateVersions": templates})];
    let answers: Vec<String> = answers.iter().map(Value::to_string).collect();
    let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
    let imported = import_flags("--v=4", &answers).expect("groups");
    load_imported(&imported);
    imported.text()
}

/// A version of a launch template.
fn template_version(id: &str, number: i64, data: Value) -> Value {
    json!({"LaunchTemplateId": id, "VersionNumber": number, "LaunchTemplateData": data})
}

fn to_base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// Whether the text has a pool outside of comments.
fn has_pool(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("pool "))
}

/// Imports a group whose launch template has this data, checks that the result is valid, and
/// returns the HCL.
fn import_group(more: &Value, data: &Value) -> String {
    let mut own = json!({
        "AutoScalingGroupName": "web",
        "AutoScalingGroupARN": "arn:aws:autoscaling:eu-west-1:1:x",
        "MaxSize": 5,
        "LaunchTemplate": {"LaunchTemplateId": "lt-own", "Version": "3"},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        own[key] = value.clone();
    }
    let mut full_data = json!({"ImageId": "ami-1", "InstanceType": "m5.large"});
    for (key, value) in data.as_object().into_iter().flatten() {
        full_data[key] = value.clone();
    }
    let answers = [
        json!({"AutoScalingGroups": [own]}).to_string(),
        json!({"LaunchTemplateVersions": [template_version("lt-own", 3, full_data)]}).to_string(),
    ];
    let answers = [answers[0].as_str(), answers[1].as_str()];
    let imported = import_flags("--cluster-name=shop", &answers).expect("groups");
    load_imported(&imported);
    imported.text()
}

#[test]
fn pool_capacity_types_follow_the_reservation_preference() {
    let target = json!({"CapacityReservationId": "cr-1"});
    let of = |preference: &str| {
        let mut own = json!({"CapacityReservationTarget": target});
        if !preference.is_empty() {
            own["CapacityReservationPreference"] = json!(preference);
        }
        json!({"CapacityReservationSpecification": own})
    };
    let first = json!({"CapacityReservationSpecification":
        {"CapacityReservationPreference": "capacity-reservations-first"}});
    let both = "in = [\"reserved\", \"on-demand\"]";
    let alone = "in = [\"reserved\"]";
    let bought = "in = [\"on-demand\"]";
    let spot = json!({"InstanceMarketOptions": {"MarketType": "spot"}});
    for (group, template, expect) in [
        (json!({}), of(""), alone),
        (json!({}), of("capacity-reservations-only"), alone),
        (json!({}), of("open"), both),
        (first, of(""), both),
        (json!({}), json!({}), bought),
        (json!({}), spot, "in = [\"spot\"]"),
    ] {
        let text = import_group(&group, &template);
        assert!(has_pool(&text), "{text}");
        let at = text.find("require \"karpenter.sh/capacity-type\"").expect("a requirement");
        let own = text[at..].lines().take(4).collect::<String>();
        assert!(own.contains(expect), "{template}: no {expect} in\n{text}");
        assert!(!text.contains("LaunchTemplateData.CapacityReservation"), "{text}");
        let has_block = text.contains("capacity_reservation { id = \"cr-1\" }");
        assert_eq!(has_block, expect.contains("reserved"), "{text}");
    }
}

#[test]
fn node_group_user_data_is_imported_or_reported_missing() {
    let named = json!({"id": "lt-own", "version": "3"});
    let standard = json!({"amiType": "AL2023_x86_64_STANDARD", "launchTemplate": named});
    let custom = json!({"amiType": "CUSTOM", "launchTemplate": named});
    let generated = json!({"ImageId": "ami-1", "UserData": to_base64("join\n")});
    let eks = [template_version("lt-eks", 1, generated)];
    let missing = "missing launchTemplate lt-own version 3 (";

    // EKS adds nothing to the user data of custom images.
    let text = import_node_group(&custom, &eks);
    assert!(text.contains("join"), "{text}");
    assert!(has_pool(&text) && !text.contains(missing), "{text}");

    // The user data that EKS generates for its own images is not imported.
    let text = import_node_group(&standard, &eks);
    assert!(has_pool(&text) && text.contains(missing), "{text}");
    assert!(!text.contains("join\n"), "{text}");

    let own = template_version("lt-own", 3, json!({"UserData": to_base64("tune\n")}));
    let text = import_node_group(&standard, &[eks[0].clone(), own]);
    assert!(text.contains("tune") && !text.contains(missing), "{text}");
}

#[test]
fn custom_ami_node_group_without_its_launch_template_becomes_no_pool() {
    let custom = json!({"amiType": "CUSTOM", "launchTemplate": {"id": "lt-own", "version": "3"}});
    let text = import_node_group(&custom, &[]);
    assert!(!has_pool(&text), "{text}");
    let why = "of the nodes; pass launchTemplate lt-own version 3 with --asg";
    assert!(text.contains(why), "{text}");
}

#[test]
fn node_group_ami_types_become_aliases_or_no_pool() {
    let newest = "dropped releaseVersion: ";
    for (kind, release, expect) in [
        ("AL2023_ARM_64_NVIDIA", "1.33.0-20250519", "alias = \"al2023@v20250519\""),
        ("AL2_x86_64_GPU", "1.31.2-20241109", "alias = \"al2@v20241109\""),
        ("BOTTLEROCKET_x86_64", "1.39.0-5c8b1e2a", "alias = \"bottlerocket@1.39.0\""),
        ("WINDOWS_CORE_2022_x86_64", "1.33-2025.05.15", "alias = \"windows2022@latest\""),
        ("WINDOWS_CORE_2022_x86_64", "1.33-2025.05.15", newest),
        ("AL2023_x86_64_STANDARD", "next", newest),
        ("BOTTLEROCKET_ARM_64", "next-5c8b1e2a", newest),
        ("AL2023_x86_64_STANDARD", "", "alias = \"al2023@latest\""),
    ] {
        let mut own = json!({"amiType": kind});
        if !release.is_empty() {
            own["releaseVersion"] = json!(release);
        }
        let text = import_node_group(&own, &[]);
        assert!(has_pool(&text), "{text}");
        assert!(text.contains(expect), "{kind} {release}: no {expect} in\n{text}");
        let is_lost = text.contains(newest);
        assert_eq!(is_lost, text.contains("@latest") && !release.is_empty(), "{text}");
    }
    for kind in ["BOTTLEROCKET_x86_64_FIPS", "WINDOWS_FULL_2022_x86_64", "AL3_x86_64"] {
        let text = import_node_group(&json!({"amiType": kind}), &[]);
        assert!(!has_pool(&text), "{text}");
        let why = format!("no alias selects images of the type {kind}");
        assert!(text.contains(&why), "{text}");
    }
}

#[test]
fn stricter_metadata_options_are_reported() {
    let hops = "missing metadata_options.http_put_response_hop_limit (";
    let tokens = "missing metadata_options.http_tokens (";
    for (own, expect) in [
        (json!({}), [true, true]),
        (json!({"HttpPutResponseHopLimit": 2}), [false, true]),
        (json!({"HttpTokens": "optional"}), [true, false]),
        (json!({"HttpTokens": "optional", "HttpPutResponseHopLimit": 2}), [false, false]),
        (json!({"HttpEndpoint": "disabled"}), [false, false]),
    ] {
        let text = import_group(&json!({}), &json!({"MetadataOptions": own}));
        assert_eq!([hops, tokens].map(|own| text.contains(own)), expect, "{own}: {text}");
    }
    let text = import_group(&json!({}), &json!({}));
    assert!(text.contains(hops) && text.contains(tokens), "{text}");
}

#[test]
fn baseline_ebs_bandwidth_is_reported_as_dropped() {
    let own = json!({
        "VCpuCount": {"Min": 4},
        "MemoryMiB": {"Min": 8192},
        "BaselineEbsBandwidthMbps": {"Min": 5000},
    });
    let text =
        import_group(&json!({}), &json!({"InstanceType": null, "InstanceRequirements": own}));
    assert!(text.contains("dropped InstanceRequirements.BaselineEbsBandwidthMbps ("), "{text}");
    assert!(!text.contains("require \"karpenter.k8s.aws/instance-ebs-bandwidth\""), "{text}");
}

#[test]
fn max_size_becomes_limits_in_the_unit_of_the_group() {
    let weighed = |weight: &str| {
        json!({"MixedInstancesPolicy": {"LaunchTemplate": {
            "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-own", "Version": "3"},
            "Overrides": [{"InstanceType": "m5.large", "WeightedCapacity": weight}],
        }}})
    };
    for (own, expect) in [
        (json!({}), "limits       = { nodes = 5 }"),
        (json!({"DesiredCapacityType": "units"}), "limits       = { nodes = 5 }"),
        (json!({"DesiredCapacityType": "vcpu"}), "limits       = { cpu = 5 }"),
        (json!({"DesiredCapacityType": "memory-mib"}), "limits       = { memory = \"5Mi\" }"),
        (json!({"DesiredCapacityType": "gpus"}), "missing limits (unknown unit"),
        (weighed("1"), "limits       = { nodes = 5 }"),
        (weighed("4"), "missing limits (the group counts weighted capacity"),
    ] {
        let text = import_group(&own, &json!({}));
        assert!(text.contains(expect), "{own}: no {expect} in\n{text}");
        let has_limits = text.contains("limits       =");
        assert_ne!(has_limits, text.contains("missing limits"), "{text}");
    }
}

#[test]
fn only_known_template_version_is_noted_as_assumed_latest() {
    let reference = |version: &str| {
        let own = json!({"id": "lt-own", "version": version});
        json!({"amiType": "CUSTOM", "launchTemplate": own})
    };
    let data = json!({"ImageId": "ami-1", "UserData": to_base64("join\n")});
    let note = "# Version 3 is assumed to be the latest: the input has no other version.";
    let both = [template_version("lt-own", 3, data.clone()), template_version("lt-own", 4, data)];
    for (own, templates, expect) in [
        ("$Latest", &both[..1], true),
        ("$Latest", &[both[0].clone(), both[0].clone()], true),
        ("$Latest", &both, false),
        ("3", &both[..1], false),
    ] {
        let text = import_node_group(&reference(own), templates);
        assert!(has_pool(&text), "{text}");
        assert_eq!(text.contains(note), expect, "{own}: {text}");
    }
}

#[test]
fn user_data_with_a_token_gets_the_secret_note() {
    for (own, is_secret) in [("K3S_TOKEN=a\n", true), ("tune\n", false)] {
        let text = import_group(&json!({}), &json!({"UserData": to_base64(own)}));
        assert_eq!(text.contains(SECRET_NOTE), is_secret, "{text}");
    }
}
