//! Tests of the real binary from outside: its output, servers and exit codes.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary::{command, outrigger, run};
use kube_api::{Api, Manner, kubeconfig_for, list};
use process::{Process, get, within};

mod kube_api;
pub(crate) mod doctor;
mod control_socket;
mod top;
mod import_export;
mod plan_explain;
mod pause;
pub(crate) mod process;
mod exec_provider;
mod api_proxy;
mod systemd;

/// A directory of configuration.
struct Config(TempDir);

impl Config {
    fn new(text: &str) -> Self {
        let config = Self(TempDir::new().expect("a directory"));
        config.write(text);
        config
    }

    fn write(&self, text: &str) {
        fs::write(self.0.path().join("main.hcl"), text).expect("written");
    }

    fn path(&self) -> &str {
        self.0.path().to_str().expect("a readable path")
    }

    fn daemon(&self) -> Process {
        let log = self.0.path().join("log");
        Process::start(&["run", "--config", self.path()], &log)
    }
}

const LISTEN: &str = "telemetry { listen = \"127.0.0.1:0\" }\n";

/// Returns an observed cluster.
fn cluster(name: &str, kubeconfig: &Path) -> String {
    let path = kubeconfig.display();
    format!(
        "cluster \"{name}\" {{\n  kubeconfig {{ path = \"{path}\" }}\n  simulated {{}}\n}}\n\
         pool \"{name}\" {{}}\n"
    )
}

/// Returns a managed cluster with a simulated cloud in the daemon.
fn managed(kubeconfig: &Path) -> String {
    let path = kubeconfig.display();
    format!(
        "outrigger {{ installation = \"it\" }}\ncluster \"it\" {{\n  mode = \"manage\"\n  \
         kubeconfig {{ path = \"{path}\" }}\n  simulated {{ boot = \"0s\" }}\n}}\n\
         pool \"it\" {{}}\n"
    )
}

fn pod(name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "a", "name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"schedulerName": "default-scheduler",
            "containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    })
}

#[test]
fn daemon_that_cannot_start_exits_with_78_and_the_reason() {
    let check = |arguments: &[&str], expect: &[&str]| {
        let output = run(arguments, "");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{arguments:?}\n{text}");
        for expect in expect {
            assert!(text.contains(expect), "{expect} in:\n{text}");
        }
    };
    let bad = Config::new("cluster \"a\" {\n  kubeconfg { path = \"x\" }\n}\n");
    check(&["run", "--config", bad.path()], &["main.hcl line 2", "[unknown-block]", "kubeconfig"]);
    let empty = TempDir::new().expect("a directory");
    let path = empty.path().to_str().expect("a readable path");
    check(&["run", "--config", path], &["[unreadable]", "it contains no .hcl", "= help:"]);
    let broken = bad.0.path().join("kubeconfig");
    fs::write(&broken, "clusters: {").expect("written");
    let config = Config::new(&cluster("a", &broken));
    check(&["run", "--config", config.path()], &["cluster \"a\"", "kubeconfig", "= help:"]);
    let none = Config::new(LISTEN);
    check(&["run", "--config", none.path()], &["has no cluster"]);
    check(&["run", "--nonsense"], &["--nonsense"]);
    // The exit code is the same if stderr cannot be written.
    let full = fs::File::options().write(true).open("/dev/full");
    let mut command = command(&["run", "--config", none.path()]);
    let untold = command.stderr(full.expect("Linux has it")).status();
    assert_eq!(untold.expect("it starts").code(), Some(78));
}

/// Terraform outputs are read before everything else.
#[cfg(feature = "aws")]
#[test]
fn daemon_handles_signals_while_loading_its_configuration() {
    // It accepts connections and never responds.
    let aws = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = aws.local_addr().expect("an address");
    let config = Config::new(
        "data \"terraform_output\" \"a\" {\n  ssm_parameter = \"/a\"\n  \
         region = \"eu-west-1\"\n}\n",
    );
    let mut command = command(&["run", "--config", config.path()]);
    command.envs([
        ("AWS_ENDPOINT_URL", format!("http://{address}").as_str()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ]);
    let mut daemon = Process::spawn(command, &config.0.path().join("log"));
    let asks = aws.accept();
    asks.expect("it connects");
    daemon.signal("HUP");
    std::thread::sleep(std::time::Duration::from_millis(500));
    daemon.signal("TERM");
    assert_eq!(daemon.ends(5).code(), Some(0), "{}", daemon.log());
}

/// Invalid arguments exit with 1 for commands where 2 reports a finding. For `run` they exit with
/// 78, which prevents a restart by systemd.
#[test]
fn invalid_arguments_have_an_unambiguous_exit_code() {
    for (verb, code) in [
        ("explain", 1),
        ("export", 1),
        ("import", 1),
        ("plan", 1),
        ("status", 1),
        ("top", 1),
        ("run", 78),
        ("validate", 2),
    ] {
        let output = run(&[verb, "--nonsense"], "");
        assert_eq!(output.status.code(), Some(code), "{verb}");
    }
}

#[test]
fn version_shows_kubernetes_versions_and_target() {
    let output = run(&["version", "--json"], "");
    let version: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(version["outrigger"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["kubernetes"]["oldest"], "1.29");
    assert_eq!(version["kubernetes"]["tested"], json!(["1.35", "1.36", "1.37"]));
    let target = version["target"].as_str().expect("a target");
    assert!(target.ends_with("linux"), "{target}");
}

#[test]
fn validate_reports_all_problems_of_all_files_as_json() {
    let config = Config::new("nonsense {}\n");
    fs::write(config.0.path().join("b.hcl"), [0xff]).expect("written");
    let output = run(&["validate", "-json", config.path()], "");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["format_version"], "1.0");
    assert_eq!(report["valid"], false);
    assert_eq!(report["error_count"], 2);
    let diagnostics = report["diagnostics"].as_array().expect("a list");
    let codes: Vec<&Value> = diagnostics.iter().map(|it| &it["code"]).collect();
    assert_eq!(codes, ["unreadable", "unknown-block"]);
    for diagnostic in diagnostics {
        for field in ["severity", "summary", "detail", "code"] {
            assert!(diagnostic[field].is_string(), "{field} in {diagnostic}");
        }
    }
    let good = Config::new(LISTEN);
    let output = run(&["validate", good.path()], "");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("0 clusters, 0 pools"), "{text}");
}

#[test]
fn fmt_options_behave_as_in_terraform() {
    let config = Config::new("a={}\n");
    let nested = config.0.path().join("more");
    fs::create_dir(&nested).expect("a directory");
    fs::write(nested.join("b.hcl"), "b  = 1\n").expect("written");
    fs::write(config.0.path().join("c.hcl.json"), "{}").expect("written");
    let text = |path: &Path| fs::read_to_string(path).expect("text");
    let main = config.0.path().join("main.hcl");
    let fmt = |more: &[&str], stdin: &str, expect: i32| {
        let output = run(&[&["fmt"], more].concat(), stdin);
        let (out, errors) = (&output.stdout, &output.stderr);
        let printed = String::from_utf8_lossy(out).into_owned();
        let errors = String::from_utf8_lossy(errors).into_owned();
        assert_eq!(output.status.code(), Some(expect), "{more:?}: {printed}{errors}");
        (printed, errors)
    };
    let (path, name) = (config.path(), main.display().to_string());
    let diff = format!("--- old/{name}\n+++ new/{name}\n@@ -1 +1 @@\n-a={{}}\n+a = {{}}\n");
    let both = format!("{name}\n{diff}");
    assert_eq!(fmt(&["-check", "-diff", path], "", 3).0, both);
    let quiet = ["-list=false", "-write=false", path];
    assert_eq!(fmt(&quiet, "", 0).0, "a = {}\n");
    assert_eq!(fmt(&["-check=true", "-diff", "-list=0", path], "", 3).0, "");
    assert_eq!(text(&main), "a={}\n", "-write=false and -check write nothing");
    let link = config.0.path().join("link.hcl");
    std::os::unix::fs::symlink(&main, &link).expect("a link");
    assert_eq!(fmt(&[path], "", 0).0, format!("{}\n", link.display()));
    assert_eq!(text(&main), "a = {}\n");
    assert!(link.is_symlink(), "the link is not replaced");
    assert_eq!(fmt(&["-check", path], "", 0).0, "");
    let inner = nested.join("b.hcl");
    let listed = format!("{}\n", inner.display());
    assert_eq!(fmt(&["-recursive", path], "", 0).0, listed);
    assert_eq!(text(&inner), "b = 1\n");
    assert_eq!(fmt(&["-"], "a   =   1\n", 0).0, "a = 1\n");
    assert_eq!(fmt(&["-check", "-"], "a   =   1\n", 3).0, "");
    let (_, errors) = fmt(&["-"], "a = = 1\n", 2);
    assert!(errors.contains("<stdin>"), "{errors}");
    fs::write(&main, "a = {\n").expect("written");
    let (_, errors) = fmt(&[path, "/nowhere"], "", 2);
    assert!(errors.contains("main.hcl") && errors.contains("/nowhere"), "{errors}");
    assert_eq!(text(&main), "a = {\n", "invalid HCL is not changed");
    let other = config.0.path().join("x.env");
    fs::write(&other, "A=b\n").expect("written");
    let (_, errors) = fmt(&[&other.display().to_string()], "", 2);
    assert!(errors.contains("x.env"), "{errors}");
    assert_eq!(text(&other), "A=b\n", "a file of another type is not changed");
}

#[test]
fn fmt_leaves_the_file_unchanged_if_the_disk_is_full() {
    let text: String = (10..90).map(|number| format!("a{number}=1\n")).collect();
    let config = Config::new(&text);
    let main = config.0.path().join("main.hcl");
    // The limit is 512 bytes: the text has 480, and its formatted form 640.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", outrigger(), "fmt"]);
    let output = shell.arg(&main).output().expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("free disk space"), "{errors}");
    assert_eq!(fs::read_to_string(&main).expect("text"), text);
}

#[test]
fn reload_keeps_the_old_or_applies_the_whole_new_configuration() {
    let api = Api::start(Manner::Well, Vec::new());
    let one = format!("{LISTEN}{}", cluster("one", api.kubeconfig()));
    let config = Config::new(&one);
    let mut daemon = config.daemon();
    let admin = daemon.admin();
    let metrics = || get(&admin, "/metrics").1;
    let has = |text: &str| {
        let found = within(10, || metrics().contains(text).then_some(()));
        assert!(found.is_some(), "{text} in:\n{}", metrics());
    };
    has("outrigger_config_last_reload_successful 1");
    has("outrigger_cluster_up{cluster=\"one\"}");

    config.write("nonsense {}\n");
    daemon.signal("HUP");
    daemon.logged("configuration not reloaded", 1);
    has("outrigger_config_last_reload_successful 0");
    let none = cluster("two", Path::new("/nowhere/kubeconfig"));
    config.write(&format!("{one}{none}"));
    daemon.signal("HUP");
    daemon.logged("configuration not reloaded", 2);
    assert!(!metrics().contains("cluster=\"two\""));

    // An accidentally emptied directory, or a configuration without a cluster, stops nothing.
    fs::remove_file(config.0.path().join("main.hcl")).expect("removed");
    daemon.signal("HUP");
    daemon.logged("configuration not reloaded", 3);
    config.write(LISTEN);
    daemon.signal("HUP");
    daemon.logged("configuration not reloaded", 4);
    has("outrigger_cluster_up{cluster=\"one\"}");

    config.write(&format!("{one}{}", cluster("two", api.kubeconfig())));
    daemon.signal("HUP");
    daemon.logged("reloaded configuration", 1);
    has("outrigger_config_last_reload_successful 1");
    has("outrigger_cluster_up{cluster=\"two\"}");
    let (_, text) = get(&admin, "/readyz?verbose");
    assert!(text.contains("cluster two:"), "{text}");

    // Another content of the same kubeconfig path starts another connection.
    let text = fs::read_to_string(api.kubeconfig()).expect("read");
    fs::write(api.kubeconfig(), format!("{text}# rotated\n")).expect("written");
    config.write(&one.replace("127.0.0.1:0", "127.0.0.1:1"));
    daemon.signal("HUP");
    daemon.logged("reloaded configuration", 2);
    daemon.logged("stopped cluster", 2);
    daemon.logged("telemetry.listen changed", 1);
    let gone = || (!metrics().contains("cluster=\"two\"")).then_some(());
    assert!(within(10, gone).is_some(), "{}", metrics());
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn daemon_becomes_ready_and_reports_it() {
    let api = Api::start(Manner::Well, Vec::new());
    let config = Config::new(&format!("{LISTEN}{}", cluster("a", api.kubeconfig())));
    let mut daemon = config.daemon();
    let admin = daemon.admin();
    assert_eq!(get(&admin, "/livez").0, 200);
    assert_eq!(get(&admin, "/readyz").0, 503);
    let ready = within(15, || (get(&admin, "/readyz").0 == 200).then_some(()));
    assert!(ready.is_some(), "{}", daemon.log());
    let (status, metrics) = get(&admin, "/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("outrigger_cluster_up{cluster=\"a\"} 1"), "{metrics}");
    assert!(metrics.contains("outrigger_build_info{version="), "{metrics}");
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn invalid_buffers_and_capacity_shortfalls_are_counted() {
    let buffer = |name: &str, spec: Value| {
        let metadata = json!({"namespace": "shop", "name": name});
        json!({"metadata": metadata, "spec": spec})
    };
    let of = |template: &str| json!({"podTemplateRef": {"name": template}, "replicas": 3});
    let template = json!({"metadata": {"namespace": "shop", "name": "web"}, "template": {"spec": {
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "100000"}}}]}}});
    let buffers = [
        buffer("room", of("web")),
        buffer("both", json!({"podTemplateRef": {}, "scalableRef": {}})),
        buffer("nameless", of("../web")),
    ];
    let answers = [("capacitybuffers", list(buffers.into())), ("web", template)];
    let api = Api::with(Manner::Well, answers);
    let text = format!("{LISTEN}{}", cluster("a", api.kubeconfig()));
    let fixed = |replicas: u32| {
        let body = format!("  replicas = {replicas}\n  limits = {{ nodes = 1 }}\n");
        format!("{text}pool \"fixed\" {{\n{body}}}\n")
    };
    let config = Config::new(&fixed(3));
    let mut daemon = config.daemon();
    let admin = daemon.admin();
    let counted = |series: &str| {
        let found = within(20, || {
            let metrics = get(&admin, "/metrics").1;
            metrics.lines().any(|line| line == series).then_some(())
        });
        assert!(found.is_some(), "{series} in:\n{}", get(&admin, "/metrics").1);
    };
    let missing = |need: &str, name: &str, count: u32| {
        let labels = format!("cluster=\"a\",need=\"{need}\",name=\"{name}\"");
        counted(&format!("outrigger_capacity_shortfall{{{labels}}} {count}"));
    };
    counted("outrigger_invalid_buffers{cluster=\"a\"} 2");
    missing("room", "shop/room", 3);
    missing("nodes", "fixed", 2);
    config.write(&fixed(1));
    daemon.signal("HUP");
    missing("nodes", "fixed", 0);
    missing("room", "shop/room", 3);
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

const BY_DEFAULT: &str = "scheduler {\n  default_spread \"topology.kubernetes.io/zone\" {\n    \
    max_skew = 1\n    when_unsatisfiable = \"DoNotSchedule\"\n  }\n}\n";

#[test]
fn services_and_controllers_are_watched_with_default_spread() {
    let kinds = ["services", "replicationcontrollers", "replicasets", "statefulsets"];
    let api = Api::start(Manner::Well, Vec::new());
    let without = format!("{LISTEN}{}", cluster("a", api.kubeconfig()));
    let config = Config::new(&without);
    let mut daemon = config.daemon();
    let admin = daemon.admin();
    let is_ready = || get(&admin, "/readyz").0 == 200;
    let ready = within(15, || is_ready().then_some(()));
    assert!(ready.is_some(), "{}", daemon.log());
    assert_eq!(api.has_watched(&kinds), (false, false));
    config.write(&format!("{without}{BY_DEFAULT}"));
    daemon.signal("HUP");
    let ready = within(30, || (api.has_watched(&kinds).0 && is_ready()).then_some(()));
    assert!(ready.is_some(), "{}", daemon.log());
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn forbidden_kind_is_named_in_the_log() {
    let api = Api::start(Manner::Forbids("replicasets"), Vec::new());
    let text = format!("{LISTEN}{}", cluster("a", api.kubeconfig()));
    let config = Config::new(&format!("{text}{BY_DEFAULT}"));
    let mut daemon = config.daemon();
    daemon.logged("grant the denied permission to the user of the kubeconfig", 1);
    let log = daemon.log();
    let lost = log.lines().find(|line| line.contains("grant the denied permission"));
    assert!(lost.is_some_and(|line| line.contains("replicasets")), "{log}");
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn daemon_stops_while_the_api_or_the_plugin_hangs() {
    let api = Api::start(Manner::Hang, Vec::new());
    let config = Config::new(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let mut daemon = config.daemon();
    daemon.logged("started cluster", 1);
    assert_eq!(get(&daemon.admin(), "/readyz").0, 503);
    daemon.signal("TERM");
    assert_eq!(daemon.ends(5).code(), Some(0));

    // An exec plugin that is slow to return credentials.
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, \
                args: [\"15\"], interactiveMode: Never}}";
    fs::write(api.kubeconfig(), kubeconfig_for(1, exec)).expect("written");
    let mut daemon = config.daemon();
    std::thread::sleep(std::time::Duration::from_secs(1));
    daemon.signal("TERM");
    assert_eq!(daemon.ends(5).code(), Some(0));
}

#[test]
fn busy_default_port_does_not_stop_the_daemon() {
    // The port is busy, by this test or by another process.
    let _busy = TcpListener::bind("127.0.0.1:9464");
    let api = Api::start(Manner::Well, Vec::new());
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let mut daemon = config.daemon();
    daemon.logged("cannot serve /livez", 1);
    daemon.logged("started cluster", 1);
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn a_simulated_cloud_in_the_daemon_registers_nodes() {
    let api = Api::start(Manner::Well, vec![pod("p", "1500m")]);
    let config = Config::new(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let daemon = config.daemon();
    let nodes = within(18, || Some(api.nodes()).filter(|it| !it.is_empty()));
    assert!(nodes.is_some_and(|it| it.len() == 1), "{}", daemon.log());
}

#[test]
fn clock_skew_to_the_api_server_suspends_launches() {
    let api = Api::start(Manner::Behind(120), vec![pod("p", "1500m")]);
    let config = Config::new(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let mut daemon = config.daemon();
    let admin = daemon.admin();
    daemon.logged("clocks differ, suspending decisions", 1);
    let series = "outrigger_clock_skew_seconds{cluster=\"it\",peer=\"api_server\"} 1";
    let shown = within(18, || get(&admin, "/metrics").1.contains(series).then_some(()));
    assert!(shown.is_some(), "{}", get(&admin, "/metrics").1);
    // With equal clocks it would have launched a node by this time.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert_eq!((api.nodes(), get(&admin, "/readyz").0), (Vec::new(), 503));
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn simulated_cloud_stops_during_an_incomplete_request() {
    let dir = TempDir::new().expect("a directory");
    let arguments = ["simulated-cloud", "--listen", "127.0.0.1:0"];
    let mut cloud = Process::start(&arguments, &dir.path().join("log"));
    let address = cloud.address("simulated cloud listens on ");
    let mut half = TcpStream::connect(&address).expect("it listens");
    let text = "POST /v1/list HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    half.write_all(text.as_bytes()).expect("sent");
    assert_eq!(get(&address, "/v1/instances").0, 200);
    cloud.signal("TERM");
    assert_eq!(cloud.ends(5).code(), Some(0));
}

#[test]
fn json_plan_has_every_field() {
    let config = Config::new("cluster \"a\" {\n  simulated {}\n}\npool \"a\" {}\n");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}]}});
    let pods = [pod("fits", "100m"), pod("new", "2"), pod("never", "100000")];
    let nonsense = pod("nonsense", "many");
    let items: Vec<Value> = pods.into_iter().chain([nonsense, node]).collect();
    let state = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let arguments = ["plan", "--config", config.path(), "--cluster-state", "-", "--json"];
    let output = run(&arguments, &state);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(plan["format_version"].is_string());
    for field in ["solve_seconds", "usd_per_h_before", "usd_per_h_after"] {
        assert!(plan[field].is_number(), "{field} in {plan:#}");
    }
    let launch = &plan["launches"][0];
    for field in ["claim", "pool", "instance_type", "zone", "capacity_type"] {
        assert!(launch[field].is_string(), "{field} in {plan:#}");
    }
    assert_eq!(launch["instance_types"][0], launch["instance_type"]);
    assert!(launch["usd_per_h"].is_number());
    assert_eq!(launch["pods"], json!(["a/new"]));
    assert_eq!(plan["placed_on_existing"], json!([{"node": "n", "pods": ["a/fits"]}]));
    let unplaced = plan["unplaced"].as_array().expect("a list");
    let names: Vec<&Value> = unplaced.iter().map(|it| &it["pod"]).collect();
    assert_eq!(names, ["a/never", "a/nonsense"]);
    for reason in unplaced.iter().filter_map(|it| it["reasons"].get(0)) {
        assert!(reason["code"].is_string() && reason["text"].is_string());
        assert!(reason.get("pool").is_some());
    }
    assert!(plan["retire"].is_array());
}

#[test]
fn explain_pod_gives_the_reason_and_an_exit_code() {
    let config = Config::new("cluster \"a\" {\n  simulated {}\n}\npool \"a\" {}\n");
    let mut gated = pod("gated", "1");
    gated["spec"]["schedulingGates"] = json!([{"name": "quota"}]);
    gated["status"]["conditions"] = json!([
        {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    let mut running = pod("running", "1");
    running["spec"]["nodeName"] = json!("n");
    let items = [pod("new", "2"), pod("never", "100000"), gated, running];
    let state = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let explain = |pod: &str, more: &[&str]| {
        let given = ["explain", "pod", pod, "--config", config.path(), "--cluster-state", "-"];
        let output = run(&[&given, more].concat(), &state);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let cases = [
        ("a/new", Some(0), "launch", "New node in pool a for it"),
        ("a/never", Some(2), "unplaced", "needs cpu 100000; the largest of "),
        ("a/gated", Some(2), "gated", "scheduling gates"),
        ("a/running", Some(0), "bound", "It is bound to node n."),
    ];
    for (pod, code, answer, words) in cases {
        let (got, text, errors) = explain(pod, &[]);
        assert_eq!(got, code, "{errors}");
        assert!(text.contains(words), "{words} in:\n{text}");
        for json in [&["--output", "json"][..], &["-json"]] {
            let (got, text, _) = explain(pod, json);
            let explained: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((got, &explained["answer"]), (code, &json!(answer)));
            assert_eq!(explained["pod"], pod);
        }
    }
    let (code, text, errors) = explain("a/nevr", &[]);
    assert_eq!((code, &text[..]), (Some(1), ""));
    assert!(errors.contains("no pod a/nevr") && errors.contains("mean a/never"), "{errors}");
    let (code, _, errors) = explain("a/b/c", &[]);
    assert!(code == Some(1) && errors.contains("write it like"), "{errors}");
}

#[test]
fn explain_pool_gives_the_reason_and_an_exit_code() {
    let config = Config::new(
        "cluster \"a\" {\n  simulated {}\n}\npool \"a\" {}\npool \"none\" {\n  \
         require \"karpenter.k8s.aws/instance-cpu\" { in = [\"3\"] }\n}\n",
    );
    let items = [pod("new", "2"), pod("never", "100000")];
    let state = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let explain = |pool: &str, more: &[&str]| {
        let given = ["explain", "pool", pool, "--config", config.path()];
        let output = run(&[&given[..], &["--cluster-state", "-"], more].concat(), &state);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let (code, out) = (output.status.code(), text(output.stdout));
        (code, out, text(output.stderr))
    };
    let cases = [
        ("a", Some(0), "+ It would launch 1 node now, for 1 pod", 1),
        ("none", Some(2), "! karpenter.k8s.aws/instance-cpu in [3]: 0 of ", 0),
    ];
    for (pool, code, words, nodes) in cases {
        let (got, text, errors) = explain(pool, &[]);
        assert_eq!(got, code, "{errors}");
        assert!(text.contains(words), "{words} in:\n{text}");
        for json in [&["--output", "json"][..], &["-json"]] {
            let (got, text, _) = explain(pool, json);
            let explained: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((got, &explained["pool"]), (code, &json!(pool)));
            assert_eq!(explained["launched"]["nodes"], nodes);
            assert_eq!(explained["range"]["stopped_by"].is_null(), nodes > 0);
        }
    }
    let (code, text, errors) = explain("nome", &[]);
    assert_eq!((code, &text[..]), (Some(1), ""));
    assert!(errors.contains("no pool nome") && errors.contains("mean none?"), "{errors}");
}

#[test]
fn json_simulation_is_one_object_per_line_and_deterministic_by_seed() {
    let day = || run(&["simulate", "--json", "--seed", "5"], "");
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(day);
        (day(), other.join().expect("it runs"))
    });
    assert_eq!(one.status.code(), Some(0));
    assert!(one.stdout == other.stdout, "the same seed gave a different output");
    let text = String::from_utf8(one.stdout).expect("UTF-8");
    assert!(text.lines().count() > 10);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert!(line.is_object(), "{line}");
    }
}

#[test]
fn release_removes_finalizer_and_taints_only_from_its_own_nodes() {
    let node = |name: &str, installation: &str, finalizers: Value, taints: Value| {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "uid": name, "resourceVersion": "7", "finalizers": finalizers,
                "labels": {"outrigger.dev/managed-by": installation},
                "annotations": {"outrigger.dev/disruption-reason": "drifted"},
            },
            "spec": {"providerID": format!("aws:///z/{name}"), "taints": taints},
        })
    };
    let ours = json!(["example.com/other", "karpenter.sh/termination"]);
    let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
    let taints = json!([taint("karpenter.sh/disrupted"), taint("example.com/mine")]);
    let closed = json!([taint("karpenter.sh/unregistered")]);
    let mut plain = node("plain", "it", json!(["example.com/other"]), json!([]));
    plain["metadata"]["annotations"] = json!({});
    let nodes = vec![
        node("leaving", "it", ours.clone(), taints.clone()),
        node("coming", "it", json!([]), closed),
        // The taint was removed by another user, and the annotation remains.
        node("marked", "it", json!([]), json!([])),
        plain,
        node("strange", "else", ours, taints),
    ];
    let api = Api::with(Manner::Well, [("nodes", list(nodes))]);
    let config = Config::new(&managed(api.kubeconfig()));
    let release = |more: &[&str]| {
        let arguments = ["release", "--config", config.path(), "--cluster", "it"];
        let output = run(&[&arguments, more].concat(), "");
        let text = String::from_utf8(output.stdout).expect("text");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{text}{error}");
        text
    };
    let expect = "node leaving: would remove Outrigger's finalizer and taints\n\
                  node coming: would remove Outrigger's taints\n\
                  node marked: would remove Outrigger's taints\n";
    assert_eq!(release(&["--dry-run"]), expect);
    assert!(api.patches().is_empty());
    assert_eq!(release(&[]), expect.replace("would remove", "removed"));
    let patches = api.patches();
    let [(path, first), (_, second), (_, third)] = &patches[..] else { panic!("{patches:?}") };
    assert_eq!(path, "/api/v1/nodes/leaving");
    let marks = &third["metadata"]["annotations"];
    assert_eq!(*marks, json!({"outrigger.dev/disruption-reason": null}));
    assert_eq!(first["metadata"]["resourceVersion"], "7");
    assert_eq!(first["metadata"]["finalizers"], json!(["example.com/other"]));
    let reason = &first["metadata"]["annotations"]["outrigger.dev/disruption-reason"];
    assert_eq!(*reason, Value::Null);
    assert_eq!(first["spec"]["taints"], json!([taint("example.com/mine")]));
    assert_eq!(second["spec"]["taints"], json!([]));
    assert!(second["metadata"].get("finalizers").is_none());
}
