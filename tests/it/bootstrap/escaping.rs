//! External input is always escaped: it is never interpreted by a shell, YAML or TOML.

use std::path::Path;
use std::process::Command;

use outrigger::model::labels::Labels;
use outrigger::model::node_class::bootstrap::Bootstrap;
use outrigger::model::node_class::image::AmiFamily;
use outrigger::model::taint::{Effect, Taint};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::select;
use proptest::test_runner::Config;

use super::fixture::Case;
use super::without_eks::MACHINE;

/// Text that creates a file or breaks the syntax if anything executes it.
const HOSTILE: [&str; 22] = [
    "$(touch ran)",
    "`touch ran`",
    "'; touch ran; '",
    "\"; touch ran; \"",
    "'",
    "\"",
    "\\",
    "$x",
    "\n",
    "\r\n",
    "\nOUTRIGGER\ntouch ran\n",
    "|touch ran",
    "& touch ran &",
    "{{ token }}",
    "</powershell>",
    "\u{2019}",
    "\n--//--\n",
    "%n",
    ": ",
    " #",
    "\u{85}",
    "\u{feff}",
];

fn hostile_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        select(&HOSTILE[..]).prop_map(str::to_owned),
        "[a-z0-9.-]{0,6}",
        any::<char>().prop_map(String::from)
    ];
    // A NUL ends a string in the shell. Names and tokens cannot have one.
    vec(piece, 0..5).prop_map(|pieces| pieces.concat().replace('\0', ""))
}

/// Runs a script in this folder, checks that it created no file `ran`, and returns its output.
fn run(script: &str, folder: &Path) -> Vec<u8> {
    let mut command = Command::new("bash");
    let done = command.arg("-c").arg(script).current_dir(folder).output();
    let done = done.expect("a shell");
    assert!(done.status.success(), "{script}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(!folder.join("ran").exists(), "something was executed:\n{script}");
    done.stdout
}

/// Returns the arguments with which a script of AL2 calls `bootstrap.sh`.
fn al2_arguments(text: &str, folder: &Path) -> Vec<String> {
    let start = text.rfind("/etc/eks/bootstrap.sh").expect("a call");
    let call = text[start..].strip_prefix("/etc/eks/bootstrap.sh").expect("a call");
    let call = call.rsplit_once("\n--").expect("the end of the archive").0;
    // The last line of the archive has only the boundary.
    let printed = run(&format!("printf '%s\\0'{call}"), folder);
    let printed = String::from_utf8(printed).expect("text");
    printed.split_terminator('\0').map(str::to_owned).collect()
}

/// Returns the script with its folders moved below this one and its programs replaced by stubs.
fn with_stubbed_programs(script: &str, folder: &Path) -> String {
    let root = folder.display();
    let mut own = script.to_owned();
    for path in ["/run/", "/etc/rancher/", "/opt/"] {
        own = own.replace(path, &format!("{root}{path}"));
    }
    std::fs::create_dir_all(folder.join("run")).expect("a folder");
    let programs = "curl() { case \"$*\" in *availability-zone*) echo eu-west-1a;; \
        *instance-id*) echo i-0abc;; *local-hostname*) echo 'ip-10-0-0-1.ec2.internal extra';; \
        *) echo T;; esac; }; kubeadm() { cp \"$3\" joined; }; systemctl() { :; }; sh() { :; }";
    format!("{programs}\n{own}")
}

proptest! {
    #![proptest_config(Config { cases: 48, ..Config::default() })]

    #[test]
    fn cluster_values_are_not_executed_on_al2(
        name in hostile_text(), endpoint in hostile_text(), ca in hostile_text(),
    ) {
        let mut case = Case::of(AmiFamily::Al2);
        let cluster = &mut case.cluster;
        (cluster.name, cluster.endpoint, cluster.ca) = (name.clone(), endpoint.clone(), ca.clone());
        let folder = tempfile::tempdir().expect("a folder");
        let arguments = al2_arguments(&case.text(), folder.path());
        let plain = |text: &str| text.replace('\r', "");
        prop_assert_eq!(&arguments[0], &plain(&name));
        if endpoint.is_empty() || ca.is_empty() {
            prop_assert_eq!(&arguments[1], "--dns-cluster-ip");
        } else {
            prop_assert_eq!(&arguments[2], &plain(&endpoint));
            prop_assert_eq!(&arguments[4], &plain(&ca));
        }
    }

    #[test]
    fn join_values_are_not_executed(
        token in hostile_text(), version in hostile_text(), server in hostile_text(),
    ) {
        let mut k3s = Case::k3s(Some(&version));
        if let Bootstrap::K3s(own) = &mut k3s.class.bootstrap {
            own.server = Some(server.clone());
        }
        const AGENT: &str = "etc/rancher/k3s/config.yaml.d/90-outrigger.yaml";
        for (mut case, written) in [(k3s, AGENT), (Case::kubeadm(), "joined")] {
            case.secret = Some(token.clone());
            let Ok(data) = case.render() else {
                prop_assert!(token.trim().is_empty());
                continue;
            };
            let folder = tempfile::tempdir().expect("a folder");
            let text = String::from_utf8(data.0).expect("text");
            run(&with_stubbed_programs(&text, folder.path()), folder.path());
            let file = std::fs::read_to_string(folder.path().join(written)).expect("a file");
            let own: serde_json::Value = serde_saphyr::from_str(&file).expect("YAML");
            let node = &own["nodeRegistration"];
            let (found, node, provider) = match written {
                "joined" => (
                    &own["discovery"]["bootstrapToken"]["token"],
                    &node["name"],
                    &node["kubeletExtraArgs"][1]["value"],
                ),
                _ => (&own["token"], &own["node-name"], &own["kubelet-arg"][0]),
            };
            prop_assert_eq!(found, token.trim());
            prop_assert_eq!(node, "ip-10-0-0-1.ec2.internal");
            let provider = provider.as_str().expect("a provider id");
            prop_assert!(provider.ends_with("aws:///eu-west-1a/i-0abc"), "{}", provider);
        }
    }
}

/// Pieces of user data.
const PIECES: [&str; 18] = [
    "MIME-Version: 1.0\n",
    "Content-Type: multipart/mixed; boundary=b\n",
    "\n",
    "--b\n",
    "--b--\n",
    "[settings.kubernetes]\n",
    "a = 1\n",
    "a: b\n",
    "machine:\n",
    "  type: worker\n",
    "  kubelet:\n",
    "    x: [1]\n",
    "---\n",
    "{{",
    "}}",
    " max_pods ",
    "<powershell>",
    "</powershell>",
];

#[test]
fn deeply_nested_user_data_does_not_crash() {
    const DEPTH: usize = 50_000;
    let rows = ["[", "{a: ", "- ", "a:\n ", "{a={", "[[", "a.", "--b\n", "{{"];
    for piece in rows {
        for lead in ["", "a = ", "a: ", "machine:\n  type: worker\n  kubelet: "] {
            let text = format!("{lead}{}", piece.repeat(DEPTH));
            for mut case in all_cases() {
                case.class.user_data = text.clone();
                let _ = case.render();
            }
            let _ = Case::talos(&text).render();
            let _ = Case::template(&text).render();
        }
    }
}

/// Returns a node of every kind.
fn all_cases() -> Vec<Case> {
    let families = AmiFamily::NAMES.map(|name| Case::of(AmiFamily::parse(name).expect(name)));
    let others = [
        Case::kubeadm(),
        Case::k3s(Some("v1")),
        Case::rke2(None),
        Case::talos(MACHINE),
        Case::template(
            "#!/bin/sh\n{{ labels }} {{ taints }} {{ token | shell }} {{ cluster_name }}",
        ),
    ];
    families.into_iter().chain(others).collect()
}

proptest! {
    #[test]
    fn invalid_labels_and_taints_are_rejected(
        key in hostile_text(), value in hostile_text(),
        taint in hostile_text(), taint_value in hostile_text(),
    ) {
        let has_only = |text: &str, marks: &str| {
            text.chars().all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
        };
        for mut case in all_cases() {
            if case.class.family == AmiFamily::Custom && case.class.bootstrap == Bootstrap::Eks {
                continue;
            }
            case.labels = Labels::from([(key.clone(), value.clone())]);
            let is_valid = has_only(&key, "-_./") && has_only(&value, "-_.");
            prop_assert_eq!(case.render().is_ok(), is_valid, "{:?}={:?}", key, value);
            case.labels.clear();
            case.taints = vec![Taint {
                key: taint.clone(),
                value: taint_value.clone(),
                effect: Effect::NoSchedule,
            }];
            let is_valid = has_only(&taint, "-_./") && has_only(&taint_value, "-_.");
            prop_assert_eq!(case.render().is_ok(), is_valid, "{:?}={:?}", taint, taint_value);
        }
    }

    #[test]
    fn rendering_is_deterministic_for_any_user_data(
        pieces in vec(
            prop_oneof![hostile_text(), select(&PIECES[..]).prop_map(str::to_owned)],
            0..12,
        ),
    ) {
        let text = pieces.concat();
        for mut case in all_cases() {
            case.class.user_data = text.clone();
            prop_assert_eq!(case.render(), case.render());
            case.class.user_data = String::new();
            case.secret = Some(text.clone());
            prop_assert_eq!(case.render(), case.render());
        }
        let case = Case::template(&text);
        prop_assert_eq!(case.render(), case.render());
    }

    #[test]
    fn bottlerocket_and_al2023_parse_the_exact_cluster_values(
        name in hostile_text(), end in hostile_text(),
    ) {
        let endpoint = format!("https://{end}");
        let mut case = Case::of(AmiFamily::Bottlerocket);
        (case.cluster.name, case.cluster.endpoint) = (name.clone(), endpoint.clone());
        let own: toml::Table = case.text().parse().expect("TOML");
        let own = &own["settings"]["kubernetes"];
        prop_assert_eq!(own["cluster-name"].as_str(), Some(name.as_str()));
        prop_assert_eq!(own["api-server"].as_str(), Some(endpoint.as_str()));
        case.class.family = AmiFamily::Al2023;
        let text = case.text();
        let start = text.find("apiVersion").expect("a document");
        let body = text[start..].split("\n--//").next().expect("its end");
        let own: serde_json::Value = serde_saphyr::from_str(body).expect("YAML");
        let own = &own["spec"]["cluster"];
        prop_assert_eq!(own["name"].as_str(), Some(name.as_str()));
        prop_assert_eq!(own["apiServerEndpoint"].as_str(), Some(endpoint.as_str()));
    }

    #[test]
    fn powershell_parses_the_exact_cluster_name(name in hostile_text()) {
        let mut case = Case::of(AmiFamily::Windows2022);
        case.cluster.name = name.clone();
        let Ok(data) = case.render() else {
            prop_assert!(name.to_lowercase().contains("powershell>"));
            return Ok(());
        };
        let text = String::from_utf8(data.0).expect("text");
        let quotes = |c: char| c == '\'' || ('\u{2018}'..='\u{201b}').contains(&c);
        let rest = text.split("-EKSClusterName '").nth(1).expect("a name");
        // An independent parser: two quotes are one quote, a single quote is the end.
        let (mut read, mut chars) = (String::new(), rest.chars().peekable());
        while let Some(c) = chars.next() {
            if quotes(c) && chars.next_if(|next| quotes(*next)).is_none() {
                break;
            }
            read.push(c);
        }
        prop_assert_eq!(read, name);
        prop_assert!(chars.collect::<String>().starts_with(" -APIServerEndpoint '"));
    }
}
