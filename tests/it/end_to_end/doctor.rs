//! `outrigger doctor` on hosts with one defect each: the reported finding, and the fix.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tempfile::TempDir;

use crate::binary::run;
use server::{CERTS, Manner, serve};

mod server;

/// A configuration and a kubeconfig, to which a case adds a defect.
struct Setup {
    dir: TempDir,
    port: u16,
}

const POOL: &str = "pool \"general\" {}\n";

impl Setup {
    /// Returns a set-up whose only possible defect is in the API server.
    fn new(manner: Manner) -> Self {
        let own = Self { dir: TempDir::new().expect("a directory"), port: serve(manner) };
        fs::create_dir(own.path("config")).expect("created");
        own.write(&format!("{}{POOL}", own.cluster("kubeconfig")));
        own.reach(&format!("https://127.0.0.1:{}", own.port), "ca");
        own
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, text: &str) {
        fs::write(self.path("config/main.hcl"), text).expect("written");
    }

    /// Returns a managed cluster with this kubeconfig. An absolute path is not changed.
    fn cluster(&self, kubeconfig: &str) -> String {
        let path = self.path(kubeconfig);
        format!(
            "outrigger {{ installation = \"it\" }}\ncluster \"it\" {{\n  mode = \"manage\"\n  \
             kubeconfig {{\n    path = \"{}\"\n    context = \"it\"\n  }}\n  simulated {{}}\n}}\n",
            path.display()
        )
    }

    /// Sets the server and the CA of the kubeconfig.
    fn reach(&self, server: &str, authority: &str) {
        let ca = fs::read(format!("{CERTS}/{authority}.pem")).expect("a certificate");
        let ca = match server.starts_with("https") {
            true => format!(", certificate-authority-data: {}", STANDARD.encode(ca)),
            false => String::new(),
        };
        self.kubeconfig(&format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: \"{server}\"{ca}}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n\
             users: [{{name: it, user: {{token: secret}}}}]\n"
        ));
    }

    fn kubeconfig(&self, text: &str) {
        keep(&self.path("kubeconfig"), text);
    }

    /// Returns the exit code and the report.
    fn examine(&self, more: &[&str]) -> (Option<i32>, Value) {
        let config = self.path("config");
        let place = ["doctor", "--json", "--config", config.to_str().expect("text")];
        let output = run(&[&place[..], more].concat(), "");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_str(&text);
        let report = report.unwrap_or_else(|_| panic!("no JSON: {text}{errors}"));
        (output.status.code(), report)
    }
}

/// Writes a file with the permissions for a secret.
pub(crate) fn keep(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
    if is_root(path) {
        // Any non-root owner: the daemon's user does not exist here.
        std::os::unix::fs::chown(path, Some(65534), None).expect("given away");
    }
}

fn is_root(path: &Path) -> bool {
    fs::metadata(path).expect("it is there").uid() == 0
}

/// Returns all findings that are not ok: the path of the check, its state, its message, and the
/// fix.
pub(crate) fn told(report: &Value) -> Vec<[String; 4]> {
    fn collect(own: &Value, before: &str, all: &mut Vec<[String; 4]>) {
        let text = |name: &str| own[name].as_str().unwrap_or_default().to_owned();
        let path = format!("{before}{}", text("name"));
        let parts = own["checks"].as_array().expect("a list");
        for part in parts {
            collect(part, &format!("{path}/"), all);
        }
        if ["warning", "failed"].iter().any(|bad| own["state"] == *bad) && parts.is_empty() {
            let code = own["code"].as_str();
            assert!(code.is_some_and(|own| !own.is_empty()), "no code: {own:#}");
        }
        if parts.is_empty() && own["state"] != "ok" {
            all.push([path, text("state"), text("said"), text("fix")]);
        }
    }
    let mut all = Vec::new();
    for own in report["checks"].as_array().expect("a list") {
        collect(own, "", &mut all);
    }
    all
}

/// A set-up, its defect, and all findings: path, state, and parts of message and fix.
struct Case {
    name: &'static str,
    manner: Manner,
    breaks: fn(&Setup),
    code: i32,
    told: &'static [[&'static str; 4]],
}

fn check(case: &Case) {
    let setup = Setup::new(case.manner.clone());
    (case.breaks)(&setup);
    let (code, report) = setup.examine(&[]);
    holds(case.name, &told(&report), case.told);
    assert_eq!(code, Some(case.code), "{}: {report:#}", case.name);
}

/// Checks that the findings are exactly these: equal path and state, and the given parts of message
/// and fix.
pub(crate) fn holds(name: &str, found: &[[String; 4]], expect: &[[&str; 4]]) {
    assert_eq!(found.len(), expect.len(), "{name}: {found:#?}");
    for (found, expect) in found.iter().zip(expect) {
        let [path, state, said, fix] = found;
        assert_eq!([path, state], [expect[0], expect[1]], "{name}: {found:?}");
        assert!(said.contains(expect[2]), "{name}: {:?} in {said:?}", expect[2]);
        assert!(fix.contains(expect[3]), "{name}: {:?} in {fix:?}", expect[3]);
    }
}

fn nothing(_: &Setup) {}

fn speaks(manner: impl FnOnce(&mut Manner)) -> Manner {
    let mut own = Manner::default();
    manner(&mut own);
    own
}

fn case(
    name: &'static str,
    breaks: fn(&Setup),
    code: i32,
    told: &'static [[&'static str; 4]],
) -> Case {
    Case { name, manner: Manner::default(), breaks, code, told }
}

fn served(
    name: &'static str,
    manner: impl FnOnce(&mut Manner),
    code: i32,
    told: &'static [[&'static str; 4]],
) -> Case {
    Case { manner: speaks(manner), ..case(name, nothing, code, told) }
}

#[test]
fn doctor_reports_configuration_defects() {
    let cases = [
        case("nothing", nothing, 0, &[]),
        case(
            "no directory",
            |it| fs::remove_dir_all(it.path("config")).expect("removed"),
            4,
            &[["configuration/unreadable", "failed", "No such file", "set an existing file"]],
        ),
        case(
            "an empty directory",
            |it| fs::remove_file(it.path("config/main.hcl")).expect("removed"),
            4,
            &[[
                "configuration/unreadable",
                "failed",
                "it contains no .hcl or .hcl.json file",
                "create one",
            ]],
        ),
        case(
            "an error of syntax",
            |it| it.write("cluster \"it\" {\n"),
            4,
            &[["configuration/syntax", "failed", "main.hcl:", ""]],
        ),
        case(
            "an unknown node class",
            |it| {
                let cluster = it.cluster("kubeconfig");
                it.write(&format!(
                    "{cluster}pool \"general\" {{ node_class = node_class.gone }}\n"
                ));
            },
            4,
            &[["configuration/unknown-reference", "failed", "gone", ""]],
        ),
        case(
            "no cluster",
            |it| it.write("telemetry { listen = \"127.0.0.1:0\" }\n"),
            4,
            &[["configuration", "failed", "has no cluster", "add cluster \"NAME\""]],
        ),
        case(
            "no pool",
            |it| it.write(&it.cluster("kubeconfig")),
            2,
            &[["cluster it/pools", "warning", "no pool applies to this cluster", "add pool"]],
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_kubeconfig_defects() {
    let cases = [
        case(
            "it is missing",
            |it| fs::remove_file(it.path("kubeconfig")).expect("removed"),
            4,
            &[["cluster it/kubeconfig", "failed", "does not exist", "install -o outrigger"]],
        ),
        case(
            "everybody can read it",
            |it| {
                let mode = fs::Permissions::from_mode(0o644);
                fs::set_permissions(it.path("kubeconfig"), mode).expect("set");
            },
            2,
            &[["cluster it/kubeconfig", "warning", "every user of this host", "chmod o-rwx"]],
        ),
        case(
            "it is a directory",
            |it| {
                fs::remove_file(it.path("kubeconfig")).expect("removed");
                fs::create_dir(it.path("kubeconfig")).expect("created");
            },
            4,
            &[["cluster it/kubeconfig", "failed", "not a regular file", "install -o outrigger"]],
        ),
        case(
            "it is no YAML",
            |it| it.kubeconfig("clusters: {"),
            4,
            &[["cluster it/kubeconfig", "failed", "read the kubeconfig", "config view"]],
        ),
        case(
            "its context is not there",
            |it| {
                let text = fs::read_to_string(it.path("config/main.hcl")).expect("text");
                it.write(&text.replace("context = \"it\"", "context = \"gone\""));
            },
            4,
            &[["cluster it/kubeconfig", "failed", "context \"gone\"", "one of its contexts"]],
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_missing_credentials() {
    fn user(it: &Setup, with: &str) {
        let text = fs::read_to_string(it.path("kubeconfig")).expect("text");
        it.kubeconfig(&text.replace("{token: secret}", with));
    }
    fn exec(it: &Setup, command: &str) {
        let version = "apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never";
        user(it, &format!("{{exec: {{{version}, command: {command}}}}}"));
    }
    const PLUGIN: &str = "fix the plugin, token file, certificate or key";
    let named = |name, breaks, said, fix: &'static str| {
        let told = vec![["cluster it/kubeconfig", "failed", said, fix]];
        case(name, breaks, 4, told.leak())
    };
    let cases = [
        named("a plugin that is not there", |it| exec(it, "/nope"), "No such file", PLUGIN),
        named(
            "a plugin that prints something else",
            |it| exec(it, "pwd"),
            "the exec plugin printed no credentials",
            PLUGIN,
        ),
        named(
            "a token file that is not there",
            |it| user(it, "{tokenFile: /nowhere/token}"),
            "/nowhere/token",
            PLUGIN,
        ),
        named(
            "an authority that is none",
            |it| {
                let text = fs::read_to_string(it.path("kubeconfig")).expect("text");
                let (before, _) = text.split_once("authority-data: ").expect("one");
                let (_, after) = text.split_once("}}]\ncontexts").expect("contexts");
                it.kubeconfig(&format!("{before}authority-data: no}}}}]\ncontexts{after}"));
            },
            "certificate authority",
            "fix the reported error",
        ),
        named(
            "a plugin that hangs",
            |it| exec(it, "sleep, args: [\"30\"]"),
            "returned no credentials within 10 s",
            "sudo -u outrigger kubectl --kubeconfig",
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_files_hidden_by_the_systemd_unit() {
    let cases = [
        case(
            "it is in a home",
            |it| it.write(&format!("{}{POOL}", it.cluster("/home/nobody/.kube/config"))),
            4,
            &[
                ["cluster it/kubeconfig", "failed", "does not exist", "/home/nobody/.kube/config"],
                ["cluster it/home", "warning", "ProtectHome=", "/etc/outrigger/config"],
            ],
        ),
        case(
            "a file that it names is in a home",
            |it| {
                let text = fs::read_to_string(it.path("kubeconfig")).expect("text");
                let named = "{token: secret, tokenFile: /root/no-such-token}";
                it.kubeconfig(&text.replace("{token: secret}", named));
            },
            2,
            &[[
                "cluster it/home",
                "warning",
                "/root/no-such-token",
                "/etc/outrigger/no-such-token",
            ]],
        ),
    ];
    cases.iter().for_each(check);
}

/// The test may run as root, who can read every file.
#[test]
fn doctor_reports_a_kubeconfig_unreadable_to_the_daemon() {
    let setup = Setup::new(Manner::default());
    let path = setup.path("kubeconfig");
    fs::remove_file(&path).expect("removed");
    setup.reach(&format!("https://127.0.0.1:{}", setup.port), "ca");
    let root = is_root(&setup.path("config"));
    let mode = if root { 0o600 } else { 0o000 };
    if root {
        std::os::unix::fs::chown(&path, Some(0), Some(0)).expect("taken");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
    let (code, report) = setup.examine(&[]);
    let found = told(&report);
    let [[name, state, said, fix]] = &found[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(name, "cluster it/kubeconfig");
    let expect = match root {
        true => ("warning", "only root can read", Some(2)),
        false => ("failed", "cannot read", Some(4)),
    };
    assert!((state.as_str(), code) == (expect.0, expect.2), "{found:#?}");
    assert!(said.contains(expect.1) && fix.contains("chown outrigger"), "{found:#?}");
}

#[test]
fn doctor_reports_unreachable_api_servers() {
    let cases = [
        case(
            "nothing listens",
            |it| it.reach("https://127.0.0.1:1", "ca"),
            4,
            &[["cluster it/api", "failed", "connection refused", "start the API server"]],
        ),
        case(
            "no such host",
            |it| it.reach("https://api.nowhere.invalid:6443", "ca"),
            4,
            &[[
                "cluster it/api",
                "failed",
                "DNS cannot resolve",
                "getent hosts api.nowhere.invalid",
            ]],
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_certificate_defects() {
    let cases = [
        case(
            "another authority",
            |it| it.reach(&format!("https://127.0.0.1:{}", it.port), "other-ca"),
            4,
            &[["cluster it/api", "failed", "from a CA", "certificate-authority-data"]],
        ),
        served(
            "an expired certificate",
            |it| it.certificate = Some("expired"),
            4,
            &[["cluster it/api", "failed", "has expired", "kubeadm certs renew apiserver"]],
        ),
        served(
            "a certificate for another name",
            |it| it.certificate = Some("elsewhere"),
            4,
            &[["cluster it/api", "failed", "for a different name", "tls-server-name"]],
        ),
        served(
            "no TLS",
            |it| it.certificate = None,
            4,
            &[["cluster it/api", "failed", "does not speak TLS", "the scheme or the port"]],
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_bad_api_responses() {
    let cases = [
        served(
            "an unknown user",
            |it| it.status = Some("401 Unauthorized"),
            4,
            &[["cluster it/api", "failed", "rejects the credentials: 401", "access entry"]],
        ),
        served(
            "an API that is not up",
            |it| it.status = Some("503 Service Unavailable"),
            4,
            &[["cluster it/api", "failed", "responds with 503", "/readyz?verbose"]],
        ),
        served(
            "something that is no API",
            |it| it.status = Some("404 Not Found"),
            4,
            &[["cluster it/api", "failed", "responds with 404", "`server:` in"]],
        ),
        served(
            "something else that answers all the same",
            |it| it.status = Some("200 OK"),
            4,
            &[["cluster it/api", "failed", "not a Kubernetes version", "`server:` in"]],
        ),
        served(
            "an API that hangs",
            |it| it.pace = Duration::from_secs(60),
            4,
            &[["cluster it/api", "failed", "no response within 10 s", "allow this host to reach"]],
        ),
        served(
            "a slow API",
            |it| it.pace = Duration::from_millis(1100),
            2,
            &[["cluster it/api", "warning", "more than 1 s", "closer to the cluster"]],
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_clock_version_and_priority_defects() {
    let cases = [
        served(
            "a clock that is behind",
            |it| it.ahead = 8,
            2,
            &[["cluster it/clock", "warning", "s behind the API server's", "timedatectl"]],
        ),
        served(
            "a clock that is far ahead",
            |it| it.ahead = -300,
            4,
            &[["cluster it/clock", "failed", "s ahead of the API server's", "timedatectl"]],
        ),
        served(
            "an old version",
            |it| it.minor = "27",
            4,
            &[["cluster it/version", "failed", "v1.27.2 is older than 1.29", "upgrade"]],
        ),
        served("a new version", |it| it.minor = "40+", 0, &[]),
        served(
            "the FlowSchema of everybody",
            |it| it.schema = Some("uid-2"),
            2,
            &[["cluster it/priority", "warning", "global-default", "flow_schemas"]],
        ),
        served(
            "a FlowSchema whose name is not told",
            |it| it.private = true,
            3,
            &[["cluster it/priority", "skipped", "uid-1", "kubectl get flowschemas"]],
        ),
        served("no FlowSchema", |it| it.schema = None, 0, &[]),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_missing_permissions_with_the_rbac_rule() {
    let cases = [
        served(
            "a right to read",
            |it| it.denied = &["watch pods"],
            4,
            &[[
                "cluster it/rights/watch pods",
                "failed",
                "the user may not watch pods",
                "ClusterRole outrigger-observe: {apiGroups: [\"\"], resources: [\"pods\"], \
                 verbs: [\"watch\"]}",
            ]],
        ),
        served(
            "a right to change",
            |it| it.denied = &["create pods/eviction"],
            4,
            &[[
                "cluster it/rights/create pods/eviction",
                "failed",
                "the user may not create pods/eviction",
                "ClusterRole outrigger-manage: {apiGroups: [\"\"], resources: [\"pods/eviction\"]",
            ]],
        ),
        served(
            "a right that can be missed",
            |it| it.denied = &["patch pods/status"],
            2,
            &[[
                "cluster it/rights/patch pods/status",
                "warning",
                "for placement_hints",
                "ClusterRole outrigger-manage",
            ]],
        ),
        Case {
            breaks: |it| {
                let cluster = it.cluster("kubeconfig").replace("manage", "observe");
                it.write(&format!("{cluster}{POOL}"));
            },
            ..served(
                "a right that is only for managed clusters",
                |it| it.denied = &["create pods/eviction", "patch leases", "patch nodes"],
                0,
                &[],
            )
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_reports_other_active_autoscalers() {
    let observed = |it: &Setup| {
        let cluster = it.cluster("kubeconfig").replace("manage", "observe");
        it.write(&format!("{cluster}{POOL}"));
    };
    let cases = [
        served(
            "Karpenter",
            |it| it.leases = &[("karpenter/karpenter-leader-election", 3)],
            2,
            &[[
                "cluster it/autoscalers",
                "warning",
                "Karpenter is active",
                "kubectl -n karpenter scale deploy/karpenter --replicas=0",
            ]],
        ),
        Case {
            breaks: observed,
            ..served(
                "Karpenter, where nothing is done",
                |it| it.leases = &[("kube-system/karpenter-leader-election", 3)],
                0,
                &[],
            )
        },
        served(
            "Karpenter that was here",
            |it| it.leases = &[("kube-system/karpenter-leader-election", 600)],
            0,
            &[],
        ),
        served(
            "Cluster Autoscaler, by its Lease",
            |it| it.leases = &[("kube-system/cluster-autoscaler", 3)],
            2,
            &[["cluster it/autoscalers", "warning", "Cluster Autoscaler is", "-n kube-system"]],
        ),
        served(
            "a Karpenter of which nobody lets us see whether it is at work",
            |it| it.unseen = true,
            4,
            &[[
                "cluster it/autoscalers",
                "failed",
                "takes no action without it",
                "kubectl apply -f -",
            ]],
        ),
        served(
            "an autoscaler whose Lease may not be read, by its pod",
            |it| {
                it.private = true;
                it.schema = None;
                it.pod = Some(("scaling", "own"));
            },
            2,
            &[[
                "cluster it/autoscalers",
                "warning",
                "pod scaling/own is running",
                "kubectl -n scaling",
            ]],
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn doctor_prints_text_and_skips_checks_on_request() {
    let setup = Setup::new(speaks(|it| it.denied = &["watch pods"]));
    let config = setup.path("config").display().to_string();
    let output = run(&["doctor", "--config", &config], "");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for line in [
        "[ok]      configuration: clusters: 1, pools: 1\n",
        "[failed]  cluster it: managed\n",
        "    [failed]  watch pods: the user may not watch pods [permission-missing]\n",
        "              fix: add to the ClusterRole outrigger-observe: {apiGroups",
        "  [ok]      lease: kube-system/outrigger does not exist yet\n",
        "0 skipped, 0 warning, 1 failed.\n",
    ] {
        assert!(text.contains(line), "{line:?} in:\n{text}");
    }
    let (code, report) = setup.examine(&["--skip", "rights"]);
    let expect = ["cluster it/rights", "skipped", "skipped on request", ""];
    assert_eq!((code, told(&report)), (Some(0), vec![expect.map(str::to_owned)]));
    let (code, report) = setup.examine(&["--cluster", "it", "--skip=api"]);
    assert_eq!((code, report["counts"]["skipped"].as_u64()), (Some(0), Some(1)));
    for (wrong, expect) in [
        (&["--cluster", "gone"][..], "the configuration has no cluster \"gone\"; it has it"),
        (&["--skip", "nonsense"], "possible values: host, kubeconfig, api, clock"),
        (&["--nonsense"], "--nonsense"),
    ] {
        let output = run(&[&["doctor", "--config", &config], wrong].concat(), "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{wrong:?}: {text}");
        assert!(text.contains(expect), "{wrong:?}: {text}");
    }
}

/// The manual lists the checks that can be skipped.
#[test]
fn every_documented_check_can_be_skipped() {
    let manual = include_str!("../../../docs/INSTALL.md");
    let (_, table) = manual.split_once("|---|---|\n| `conf").expect("a table");
    let (table, _) = table.split_once("\n\n").expect("its end");
    let names = table.lines().skip(1).filter_map(|row| row.split('`').nth(1));
    // Without `api` the checks of a cluster do not run.
    let names: Vec<&str> = names.filter(|own| *own != "api").collect();
    assert_eq!(names.len(), 13);
    let skips: Vec<&str> = names.iter().flat_map(|own| ["--skip", own]).collect();
    let (code, report) = Setup::new(Manner::default()).examine(&skips);
    let told = told(&report);
    // This configuration has no AWS checks.
    assert_eq!((code, told.len()), (Some(0), 9), "{report:#}");
    assert!(told.iter().all(|own| own[2] == "skipped on request"));
}

/// No control character from a file or an API reaches the terminal.
#[test]
fn external_text_is_truncated_and_has_no_escape_sequences() {
    let setup = Setup::new(Manner::default());
    let text = fs::read_to_string(setup.path("kubeconfig")).expect("text");
    let name = format!("\\e[2J{}", "x".repeat(2000));
    let config = fs::read_to_string(setup.path("config/main.hcl")).expect("text");
    setup.write(&config.replace("context = \"it\"", ""));
    setup.kubeconfig(&text.replace("current-context: it", &format!("current-context: \"{name}\"")));
    let config = setup.path("config").display().to_string();
    let output = run(&["doctor", "--config", &config], "");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| line.contains("xxx"));
    let longest = lines.map(|line| line.chars().count()).max();
    assert!(longest.is_some_and(|own| own < 400), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}
