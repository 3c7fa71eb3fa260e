//! Each user data equals its snapshot and is accepted by the parsers of its format.

use std::path::Path;
use std::process::Command;

use insta::{assert_snapshot, with_settings};
use outrigger::bootstrap::UserData;
use outrigger::model::node_class::image::AmiFamily;

use super::fixture::{Case, Change, alias, set_all_settings};
use super::without_eks::MACHINE;

/// The name of a row with the file extension of its format, the node, and its change of the plain
/// node.
type Row = (&'static str, fn() -> Case, Change);

const ROWS: [Row; 22] = [
    ("al2.mime", || Case::of(AmiFamily::Al2), |_| {}),
    ("al2-settings.mime", || Case::of(AmiFamily::Al2), set_all_settings),
    (
        "al2-merged.mime",
        || Case::of(AmiFamily::Al2),
        |it| {
            it.class.user_data = USER_ARCHIVE.replace('\n', "\r\n");
            it.class.raid0 = true;
        },
    ),
    ("al2023.mime", || Case::of(AmiFamily::Al2023), |_| {}),
    (
        "al2023-settings.mime",
        || Case::of(AmiFamily::Al2023),
        |it| {
            set_all_settings(it);
            it.class.kubelet.pods_per_core = Some(10);
            let extra = [
                ("shutdownGracePeriod", "45s".into()),
                ("serializeImagePulls", false.into()),
                ("featureGates", serde_json::json!({"A": true})),
            ];
            let extra = extra.map(|(key, value)| (key.to_owned(), value));
            it.class.kubelet.extra.extend(extra);
            it.class.raid0 = true;
        },
    ),
    (
        "al2023-archive.mime",
        || Case::of(AmiFamily::Al2023),
        |it| {
            it.class.user_data = USER_ARCHIVE.to_owned();
        },
    ),
    (
        "al2023-yaml.mime",
        || Case::of(AmiFamily::Al2023),
        |it| {
            it.class.user_data = USER_NODE_CONFIG.to_owned();
        },
    ),
    (
        "al2023-shell.mime",
        || Case::of(AmiFamily::Al2023),
        |it| {
            it.class.user_data = "#!/bin/bash\necho \"key: value\"\n".to_owned();
        },
    ),
    ("bottlerocket.toml", || Case::of(AmiFamily::Bottlerocket), |_| {}),
    ("bottlerocket-settings.toml", || Case::of(AmiFamily::Bottlerocket), set_all_settings),
    (
        "bottlerocket-merged.toml",
        || Case::of(AmiFamily::Bottlerocket),
        |it| {
            it.class.user_data = USER_TOML.to_owned();
            it.class.images = vec![alias(AmiFamily::Bottlerocket, "v1.45.0")];
            it.class.raid0 = true;
        },
    ),
    ("windows.ps1", || Case::of(AmiFamily::Windows2022), |_| {}),
    (
        "windows-merged.ps1",
        || Case::of(AmiFamily::Windows2019),
        |it| {
            it.class.user_data = "<powershell>\nWrite-Host 'hello'\n</powershell>\n".to_owned();
            set_all_settings(it);
        },
    ),
    ("kubeadm.sh", Case::kubeadm, |_| {}),
    ("kubeadm-old.sh", Case::kubeadm, |it| {
        it.cluster.version = "1.30".to_owned();
        it.class.metadata.ipv6 = true;
        it.cluster.ipv6 = true;
        it.cluster.endpoint = "https://[2001:db8::1]".to_owned();
    }),
    ("kubeadm-merged.mime", Case::kubeadm, |it| {
        it.class.user_data = "#cloud-config\npackages: [nfs-common]\n".to_owned();
        set_all_settings(it);
    }),
    ("k3s.sh", || Case::k3s(None), |_| {}),
    ("k3s-installed.sh", || Case::k3s(Some("v1.33.4+k3s1")), set_all_settings),
    ("rke2.sh", || Case::rke2(None), |_| {}),
    ("rke2-installed.sh", || Case::rke2(Some("v1.33.4+rke2r1")), |_| {}),
    ("talos.yaml", || Case::talos(MACHINE), set_all_settings),
    ("template.sh", || Case::template(TEMPLATE), |_| {}),
];

const USER_ARCHIVE: &str = "MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=\"BOUNDARY\"

--BOUNDARY
Content-Type: text/x-shellscript; charset=\"us-ascii\"

#!/bin/bash
echo before

--BOUNDARY
Content-Type: text/cloud-config
Content-Transfer-Encoding: 7bit

packages: [htop]

--BOUNDARY--
";

const USER_NODE_CONFIG: &str = "---
# The user's own; maxPods loses against ours, which comes last (rule 25).
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  kubelet:
    config:
      maxPods: 7
";

const USER_TOML: &str = "[settings]
motd = \"hello\"

[settings.kubernetes]
max-pods = 7
allowed-unsafe-sysctls = [\"net.core.somaxconn\"]
brand-new-setting = 1

[settings.kubernetes.node-labels]
team = \"red\"
own = \"kept\"

[settings.bootstrap-commands.\"100-own\"]
commands = [[\"apiclient\", \"get\"]]
essential = false
mode = \"once\"

[elsewhere]
kept = true
";

const TEMPLATE: &str = "#!/bin/bash
set -eu
join --cluster {{ cluster_name | shell }} --api {{api_host}}:{{ api_port }} \\
  --token {{ token | shell }} --ca {{ ca }} --hash {{ ca_hash }} --dns {{ cluster_dns }} \\
  --services {{ service_cidr }} --pods {{ max_pods }} --version {{ version }} \\
  --labels '{{ labels }}' --taints '{{ taints }}' --kubelet '{{ kubelet_args }}'
cat >/etc/kubelet.json <<'X'
{{ kubelet_config }}
X
# {{ v1.local_hostname }} is cloud-init's, {{ token is nobody's
";

#[test]
fn each_user_data_equals_its_snapshot() {
    for (name, case, change) in ROWS {
        with_settings!({
            snapshot_path => "snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            assert_snapshot!(name, case().with(change).text());
        });
    }
}

/// Writes the user data of all rows into a folder, for programs that read files.
fn write_user_data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, case, change) in ROWS {
        let UserData(bytes) = case().with(change).render().expect(name);
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    }
    let large = Case::of(AmiFamily::Al2023).with(|it| {
        it.class.user_data = format!("#!/bin/bash\n{}", "echo again\n".repeat(4_000));
    });
    let UserData(bytes) = large.render().expect("user data with gzip");
    std::fs::write(folder.path().join("large.mime"), bytes).expect("a file");
    folder
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests/all names the interpreter with what it installed"
)]
fn run_check(what: &str) -> (Option<i32>, String) {
    let python = std::env::var_os("OUTRIGGER_PYTHON").unwrap_or_else(|| "python3".into());
    let folder = write_user_data();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bootstrap/check.py");
    let mut command = Command::new(python);
    let done = command.arg(script).arg(what).arg(folder.path());
    let done = done.output().expect("a Python that runs");
    let output = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8_lossy(&output).into_owned())
}

#[test]
fn each_user_data_is_accepted_by_its_formats_parser() {
    let (code, output) = run_check("scripts");
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(output.matches("ok ").count(), ROWS.len() + 1, "{output}");
}

#[test]
fn each_yaml_is_accepted_by_pyyaml() {
    const TEST: &str = "bootstrap::accepted_by_parsers::each_yaml_is_accepted_by_pyyaml";
    match run_check("yaml") {
        (Some(3), _) => println!("SKIP {TEST}: PyYAML is not installed"),
        (code, output) => assert_eq!(code, Some(0), "{output}"),
    }
}

#[test]
fn each_part_is_accepted_by_cloud_init() {
    const TEST: &str = "bootstrap::accepted_by_parsers::each_part_is_accepted_by_cloud_init";
    match run_check("cloud-init") {
        (Some(3), _) => println!("SKIP {TEST}: cloud-init, which only distributions have"),
        (code, output) => assert_eq!(code, Some(0), "{output}"),
    }
}

#[test]
fn toml_and_yaml_are_accepted_by_rust_parsers() {
    for (name, case, change) in ROWS {
        let text = case().with(change).text();
        match name.rsplit_once('.').expect("an ending").1 {
            "toml" => drop(text.parse::<toml::Table>().expect(name)),
            "yaml" => {
                let first = text.split("\n---").next().expect("a document");
                let _: serde_json::Map<_, _> = serde_saphyr::from_str(first).expect(name);
            }
            _ => {
                let inside = text.split("<<'OUTRIGGER'\n").nth(1);
                let Some(inside) = inside else { continue };
                let file = inside.split("\nOUTRIGGER\n").next().expect("a file");
                let _: serde_json::Map<_, _> = serde_saphyr::from_str(file).expect(name);
            }
        }
    }
}
