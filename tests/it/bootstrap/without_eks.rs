//! User data of clusters without EKS: kubeadm, k3s, RKE2, Talos, templates.
//!
//! Source: spec/aws.md §9.2 to §9.4.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger::bootstrap::BootstrapError;
use outrigger::model::node_class::bootstrap::Bootstrap;
use outrigger::model::node_class::image::AmiFamily;
use serde_json::{Map, Value, json};

use super::fixture::{
    CA, CA_HASH, Case, OLD_CA, OLD_CA_HASH, TOKEN, VERSION_1_CA, VERSION_1_CA_HASH, address,
    encoded, labels, reserved, set_all_settings,
};

/// An abridged output of `talosctl gen config`, with a second document and strings that a YAML
/// round trip would change.
pub(super) const MACHINE: &str = "version: v1alpha1 # Indicates the schema used.
debug: false
# Provides machine specific configuration options.
machine:
    type: worker # Defines the role of the machine.
    token: aaaaaa.bbbbbbbbbbbbbbbb
    ca:
        crt: LS0tLS1CRUdJTg==
        key: \"\"
    # Used to provide additional options to the kubelet.
    kubelet:
        image: ghcr.io/siderolabs/kubelet:v1.33.4
        extraArgs:
            rotate-server-certificates: \"true\"
            node-labels: own=kept
        extraConfig:
            maxPods: 7
            serverTLSBootstrap: true
        defaultRuntimeSeccompProfileEnabled: true
    # Provides machine specific network configuration options.
    network: {}
    files:
        - content: |-
            kubelet:
              is: not ours
          permissions: 0644
          path: /var/etc/x
    sysctls: {net.ipv4.ip_forward: \"1\"}
cluster:
    id: c2VjcmV0
    secret: c2VjcmV0
    controlPlane:
        endpoint: https://api.example.com:6443
    clusterName: 1.10
---
apiVersion: v1alpha1
kind: HostnameConfig
auto: stable # each node its own
";

/// Parses the file that a script writes.
fn file(text: &str) -> Map<String, Value> {
    let inside = text.split("<<'OUTRIGGER'\n").nth(1).expect("a file");
    let inside = inside.split("\nOUTRIGGER\n").next().expect("its end");
    serde_saphyr::from_str(inside).expect("YAML")
}

#[test]
fn kubeadm_registers_the_planned_node() {
    let text = Case::kubeadm().text();
    let own = file(&text);
    assert_eq!(own["apiVersion"], "kubeadm.k8s.io/v1beta4");
    let discovery = &own["discovery"]["bootstrapToken"];
    let expected = json!({
        "apiServerEndpoint": "api.example.com:6443",
        "token": TOKEN,
        "caCertHashes": [CA_HASH],
    });
    assert_eq!(*discovery, expected);
    let registration = &own["nodeRegistration"];
    assert_eq!(registration["taints"][1]["key"], "karpenter.sh/unregistered");
    assert_eq!(registration["taints"][1]["effect"], "NoExecute");
    let given: Vec<(&str, &str)> = registration["kubeletExtraArgs"]
        .as_array()
        .expect("arguments")
        .iter()
        .filter_map(|own| Some((own["name"].as_str()?, own["value"].as_str()?)))
        .collect();
    let expected = [
        (
            "node-labels",
            "karpenter.k8s.aws/ec2nodeclass=default,karpenter.sh/capacity-type=spot,\
             karpenter.sh/do-not-sync-taints=true,karpenter.sh/nodepool=general,team=blue",
        ),
        ("provider-id", "__PROVIDER_ID__"),
        ("max-pods", "29"),
        ("kube-reserved", "cpu=70m,memory=574Mi"),
        (
            "eviction-hard",
            "imagefs.available<15%,imagefs.inodesFree<5%,memory.available<100Mi,\
             nodefs.available<10%,nodefs.inodesFree<5%",
        ),
    ];
    assert_eq!(given, expected);
    assert!(!text.contains("cloud-provider"), "only with a cloud controller");
    assert!(text.contains("kubeadm join --config /run/outrigger-join.yaml\nrm -f"), "{text}");
}

#[test]
fn kubeadm_1_30_gets_kubelet_arguments_as_a_map() {
    let mut case = Case::kubeadm();
    case.cluster.version = "1.30".to_owned();
    let own = file(&case.text());
    assert_eq!(own["apiVersion"], "kubeadm.k8s.io/v1beta3");
    assert_eq!(own["nodeRegistration"]["kubeletExtraArgs"]["max-pods"], "29");
}

#[test]
fn user_reserved_resources_override_the_defaults() {
    let mut case = Case::kubeadm();
    set_all_settings(&mut case);
    let text = case.text();
    for expected in [
        "cpu=90m,memory=574Mi",
        "memory.available<200Mi,nodefs.available<7.5%",
        "system-reserved",
        "cluster-dns",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let own = &mut case.class.kubelet.kube_reserved;
    own.insert("memory".to_owned(), reserved(1 << 30, "1Gi"));
    assert!(case.text().contains("cpu=90m,memory=1Gi"));
}

#[test]
fn ca_hash_is_computed_from_the_public_key() {
    let hashes = |ca: &str| {
        let mut case = Case::kubeadm();
        case.cluster.ca = encoded(ca);
        file(&case.text())["discovery"]["bootstrapToken"]["caCertHashes"].clone()
    };
    assert_eq!(hashes(CA), json!([CA_HASH]));
    // During a rotation of the certificate authority, the API may have a certificate of either.
    assert_eq!(hashes(&format!("{OLD_CA}\n{CA}")), json!([OLD_CA_HASH, CA_HASH]));
    let cut = CA.replace("MIIBgTCCASegAwIBAgIUPynnZglH1K", "MIIBgTCCASegAwIBAgIUPynnZglH1");
    for (ca, expected) in [
        (encoded("\n"), "it has no certificate"),
        ("%".to_owned(), "it is not base64"),
        (encoded("-----BEGIN CERTIFICATE-----\n-----END"), "a certificate is malformed"),
        (encoded("-----BEGIN CERTIFICATE-----\nMIIB\n-----END"), "a certificate is malformed"),
        (encoded("-----BEGIN CERTIFICATE-----\n?\n-----END"), "a certificate is not base64"),
        (encoded(&cut), "a certificate is not base64"),
    ] {
        let mut case = Case::kubeadm();
        case.cluster.ca = ca;
        assert!(case.error().ends_with(expected), "{}", case.error());
    }
}

/// kubeadm validates the other fields of the certificate.
#[test]
fn certificate_is_parsed_up_to_its_public_key() {
    let pem = |der: &[u8]| {
        let body = STANDARD.encode(der);
        encoded(&format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----"))
    };
    for (ca, hash) in [(CA, CA_HASH), (OLD_CA, OLD_CA_HASH), (VERSION_1_CA, VERSION_1_CA_HASH)] {
        let body: String = ca.lines().filter(|line| !line.starts_with('-')).collect();
        let der = STANDARD.decode(body).expect("base64");
        for more in [&b""[..], b"\0", &der] {
            let mut case = Case::kubeadm();
            case.cluster.ca = pem(&[&der, more].concat());
            let own = file(&case.text());
            let hashes = &own["discovery"]["bootstrapToken"]["caCertHashes"];
            assert_eq!(*hashes, json!([hash]));
        }
        // The last two: the certificate, or its signed part, is no sequence.
        let other = |at: usize| {
            let mut other = der.clone();
            other[at] = 0x31;
            other
        };
        let cut = (0..der.len()).map(|length| der[..length].to_vec());
        for der in cut.chain([other(0), other(4)]) {
            let mut case = Case::kubeadm();
            case.cluster.ca = pem(&der);
            let error = case.error();
            assert!(error.ends_with("a certificate is malformed"), "{error}");
        }
    }
}

#[test]
fn k3s_and_rke2_agents_register_the_planned_node() {
    for (case, server) in [
        (Case::k3s(None), "https://api.example.com:6443"),
        (Case::rke2(None), "https://api.example.com:9345"),
    ] {
        let own = file(&case.text());
        assert_eq!(own["server"], server);
        assert_eq!(own["token"], TOKEN);
        let taints = json!(["dedicated=blue:NoSchedule", "karpenter.sh/unregistered=:NoExecute"]);
        assert_eq!(own["node-taint"], taints);
        assert_eq!(own["node-label"][4], "team=blue");
        let arguments = own["kubelet-arg"].as_array().expect("arguments");
        assert_eq!(arguments[0], "provider-id=__PROVIDER_ID__");
        assert_eq!(arguments[1], "max-pods=29");
        assert_eq!(arguments[2], "kube-reserved=cpu=70m,memory=574Mi");
    }
    let mut case = Case::k3s(None);
    case.class.kubelet.cluster_dns = vec![address("10.43.0.10")];
    if let Bootstrap::K3s(own) = &mut case.class.bootstrap {
        own.server = Some("https://join.example.com:8443".to_owned());
    }
    let own = file(&case.text());
    assert_eq!(own["server"], "https://join.example.com:8443");
    assert_eq!(own["kubelet-arg"][1], "cluster-dns=10.43.0.10");
}

#[test]
fn agent_is_installed_only_if_a_version_is_set() {
    assert!(!Case::k3s(None).text().contains("get.k3s.io"));
    assert!(!Case::rke2(None).text().contains("INSTALL"));
    let text = Case::k3s(Some("v1.33.4+k3s1")).text();
    assert!(text.contains("INSTALL_K3S_VERSION='v1.33.4+k3s1' sh"), "{text}");
    let text = Case::rke2(Some("v1.33.4+rke2r1")).text();
    assert!(
        text.contains("INSTALL_RKE2_TYPE=agent INSTALL_RKE2_VERSION='v1.33.4+rke2r1'"),
        "{text}"
    );
}

#[test]
fn talos_config_changes_only_in_the_kubelet_section() {
    let text = Case::talos(MACHINE).text();
    let lines: Vec<&str> = text.lines().collect();
    for line in MACHINE.lines().filter(|line| !line.starts_with("        ")) {
        assert!(lines.contains(&line), "{line:?} is missing in\n{text}");
    }
    assert!(text.contains("permissions: 0644") && text.contains("is: not ours"));
    let first = text.split("\n---\n").next().expect("a document");
    let own: Map<String, Value> = serde_saphyr::from_str(first).expect("YAML");
    let kubelet = &own["machine"]["kubelet"];
    assert_eq!(kubelet["image"], "ghcr.io/siderolabs/kubelet:v1.33.4");
    let arguments = &kubelet["extraArgs"];
    assert_eq!(arguments["rotate-server-certificates"], "true");
    let given = arguments["node-labels"].as_str().expect("labels");
    assert!(given.starts_with("own=kept,karpenter.k8s.aws/ec2nodeclass=default,"), "{given}");
    let config = &kubelet["extraConfig"];
    assert_eq!(config["maxPods"], 29);
    assert_eq!(config["serverTLSBootstrap"], true);
    let none = json!({"cpu": "0", "ephemeral-storage": "0", "memory": "0"});
    assert_eq!(config["systemReserved"], none, "the default of Talos is not zero");
    assert_eq!(config["kubeReserved"], json!({"cpu": "70m", "memory": "574Mi"}));
    assert_eq!(config["evictionHard"]["memory.available"], "100Mi");
    assert_eq!(config["registerWithTaints"][0]["key"], "dedicated");
    assert_eq!(config["registerWithTaints"][1]["key"], "karpenter.sh/unregistered");
    assert!(config.get("clusterDNS").is_none(), "Talos rejects it here");
    assert!(kubelet.get("clusterDNS").is_none(), "the configuration already has it");
    let text = Case::talos(MACHINE).with(set_all_settings).text();
    assert!(text.contains("      clusterDNS:\n        - \"10.100.0.99\"\n"), "{text}");
}

#[test]
fn kubelet_section_is_added_to_a_talos_config_without_one() {
    let rows = [
        "machine:\n  type: worker\ncluster: {}\n",
        "---\nmachine:\n\n  # one\n  type: worker\n",
        "machine:\n  type: worker\n  kubelet: {}\n",
        "machine:\n  kubelet:\n  type: worker\n",
        "kind: Other\n---\nmachine:\n  kubelet: {extraArgs: {a: b}}\n  type: worker\n",
    ];
    for own in rows {
        let text = Case::talos(own).text();
        assert!(text.contains("\n  kubelet:\n    ") && text.contains("type: worker"), "{text}");
    }
}

#[test]
fn invalid_talos_worker_config_is_rejected() {
    let rows = [
        ("machine: {type: worker}\n", "`machine` is not in block style"),
        ("machine:\n  type: controlplane\n", "`machine.type` is not `worker`"),
        ("machine:\n  token: a\n", "`machine.type` is not `worker`"),
        ("machine: worker\n", "`machine` is not a mapping"),
        ("cluster: {}\n", "no document of it has `machine`"),
        ("hello", "no document of it has `machine`"),
        ("machine:\n  type: worker\n---\nmachine:\n  type: worker\n", "two of its documents"),
        ("machine:\n  type: worker\n  kubelet: 1\n", "`kubelet` of the kubelet is not a mapping"),
        ("machine:\n  type: worker\n  kubelet:\n    extraArgs: []\n", "`extraArgs` of the kubelet"),
        (
            "machine:\n  type: worker\n  kubelet:\n    extraArgs: {node-labels: 1}\n",
            "is not a text",
        ),
        (
            "machine:\n  type: worker\n  kubelet:\n    extraConfig:\n      registerWithTaints: \
             [{key: other, effect: NoSchedule}]\n",
            "has \"other\", of which its pool knows nothing",
        ),
        (
            "machine:\n  type: worker\n  \"kubelet\": {}\n",
            "cannot be distinguished from the others",
        ),
    ];
    for (own, expected) in rows {
        let error = Case::talos(own).error();
        assert!(error.contains(expected), "{own:?}: {error}");
    }
}

#[test]
fn template_placeholders_are_filled_in_by_name() {
    let rows = [
        ("{{ max_pods }}|{{max_pods}}|{{  max_pods  }}", "29|29|29"),
        (
            "{{ token }} {{ token | shell }} {{ token|json }}",
            "abcdef.0123456789abcdef 'abcdef.0123456789abcdef' \"abcdef.0123456789abcdef\"",
        ),
        ("{{ api_host }} {{ api_port }}", "api.example.com 6443"),
        ("{{ taints }}", "dedicated=blue:NoSchedule,karpenter.sh/unregistered=:NoExecute"),
        (
            "{{ taints_json }}",
            "[{\"key\":\"dedicated\",\"value\":\"blue\",\"effect\":\"NoSchedule\"},\
             {\"key\":\"karpenter.sh/unregistered\",\"value\":\"\",\"effect\":\"NoExecute\"}]",
        ),
        ("{{ kube_reserved }}", "cpu=70m,memory=574Mi"),
        // Not placeholders of Outrigger: those of cloud-init and Go, and an unclosed brace.
        (
            "{{ v1.region }} {{ .Values }} {{ \"a\" }} {{}} {{ Token }} {{",
            "{{ v1.region }} {{ .Values }} {{ \"a\" }} {{}} {{ Token }} {{",
        ),
        ("{{ {{ max_pods }}", "{{ 29"),
        ("no names", "no names"),
    ];
    for (template, expected) in rows {
        assert_eq!(Case::template(template).text(), expected);
    }
    let mut case = Case::template("{{ labels_json }}{{ labels }}{{ system_reserved }}");
    case.labels = labels(&[("a", "b")]);
    assert_eq!(case.text(), "{\"a\":\"b\"}a=b");
}

#[test]
fn template_with_unknown_names_or_unsafe_values_is_rejected() {
    let rows = [
        ("{{ tokn }}", "nothing is named \"tokn\": there are api_host, api_port,"),
        ("{{ token | bash }}", "there is no filter \"bash\""),
        ("{{ image_name }}{{ max_pods | }}", "there is no filter \"\""),
    ];
    for (template, expected) in rows {
        let error = Case::template(template).error();
        assert!(error.contains(expected), "{error}");
    }
    let mut case = Case::template("{{ token }}");
    for secret in ["a'b", "a;b", "a b", "a\nb", "a|b", "$a", "(a)", "<a"] {
        case.secret = Some(secret.to_owned());
        let error = case.error();
        assert!(error.contains("{{ token | shell }}"), "{error}");
        assert!(!error.contains(secret), "{error}");
    }
    let mut raw = Case::template("{{ token | raw }}");
    raw.secret = Some("two\nlines".to_owned());
    assert_eq!(raw.text(), "two\nlines");
    case.secret = None;
    assert_eq!(case.render(), Err(BootstrapError::SecretMissing("custom")));
    let mut case = Case::template("{{ cluster_dns }}");
    case.cluster.dns = None;
    assert!(case.error().contains("DNS is not known"));
    for mut case in [Case::template("a"), Case::talos(MACHINE)] {
        case.class.user_data = "b".to_owned();
        assert!(case.error().contains("put it there"), "{}", case.error());
    }
}

#[test]
fn join_scripts_are_rejected_for_bottlerocket_and_windows() {
    for family in [AmiFamily::Bottlerocket, AmiFamily::Windows2022] {
        for mut case in [Case::kubeadm(), Case::k3s(None), Case::rke2(None), Case::talos(MACHINE)] {
            case.class.family = family;
            let refused = case.render().expect_err("another family");
            assert!(matches!(refused, BootstrapError::NotForFamily { .. }), "{refused}");
        }
    }
    for family in [AmiFamily::Al2, AmiFamily::Al2023, AmiFamily::Custom] {
        let mut case = Case::kubeadm();
        case.class.family = family;
        assert!(case.text().contains("kubeadm join"));
    }
    let mut case = Case::template("{{ labels }}");
    case.class.family = AmiFamily::Bottlerocket;
    assert!(case.text().contains("team=blue"));
}

#[test]
fn missing_secret_or_disabled_metadata_is_an_error() {
    for mut case in [Case::kubeadm(), Case::k3s(None), Case::rke2(None), Case::talos(MACHINE)] {
        for secret in [None, Some(" \n".to_owned())] {
            case.secret = secret;
            let refused = case.render().expect_err("no secret");
            assert_eq!(refused, BootstrapError::SecretMissing(case.class.bootstrap.as_str()));
        }
    }
    for mut case in [Case::kubeadm(), Case::k3s(None), Case::rke2(None)] {
        case.class.metadata.endpoint = false;
        let refused = case.render().expect_err("no metadata");
        assert_eq!(refused, BootstrapError::MetadataDisabled(case.class.bootstrap.as_str()));
    }
}

#[test]
fn debug_output_hides_the_join_token() {
    for case in [Case::kubeadm(), Case::k3s(None), Case::rke2(None), Case::template("{{ token }}")]
    {
        let data = case.render().expect("user data");
        assert!(String::from_utf8_lossy(&data.0).contains(TOKEN));
        let printed = format!("{data:?}");
        assert!(printed.starts_with("UserData(") && !printed.contains(TOKEN), "{printed}");
        let bytes = format!("{:?}", TOKEN.as_bytes());
        assert!(!printed.contains(bytes.trim_matches(['[', ']'])), "{printed}");
    }
}
