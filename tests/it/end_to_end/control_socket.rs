//! Responses of the control socket, and the commands that use it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::kube_api::{Api, Manner};
use super::process::{Process, within};
use super::{Config, LISTEN, cluster, managed, pod};
use crate::binary::{command, run};

/// A daemon that has a runtime directory.
pub(super) struct Setup {
    pub(super) config: Config,
    pub(super) daemon: Process,
    pub(super) socket: PathBuf,
}

/// Starts a daemon whose runtime directory is that of the configuration, with this log file.
pub(super) fn daemon(config: &Config, log: &str) -> Process {
    let mut start = command(&["run", "--config", config.path()]);
    start.env("RUNTIME_DIRECTORY", config.0.path());
    Process::spawn(start, &config.0.path().join(log))
}

impl Setup {
    pub(super) fn start(text: &str) -> Self {
        let config = Config::new(text);
        let daemon = daemon(&config, "log");
        daemon.logged("serving status and reload", 1);
        let socket = config.0.path().join("admin.sock");
        Self { config, daemon, socket }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        let socket = self.socket.to_str().expect("UTF-8");
        run(&[arguments, &["--socket", socket]].concat(), "")
    }

    /// Returns the output of `status` once it exits with this code.
    fn status(&self, code: i32) -> Value {
        let ask = || {
            let output = self.ask(&["status", "--json"]);
            (output.status.code() == Some(code)).then_some(output.stdout)
        };
        let response = within(20, ask);
        let response = response.unwrap_or_else(|| panic!("{}", self.daemon.log()));
        serde_json::from_slice(&response).expect("JSON")
    }
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).expect("UTF-8")
}

#[test]
fn status_shows_the_state_of_each_cluster() {
    let api = Api::start(Manner::Well, Vec::new());
    let mut setup = Setup::start(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let mode = fs::metadata(&setup.socket).expect("a socket").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let status = setup.status(0);
    let cluster = &status["clusters"][0];
    assert_eq!(status["format_version"], "1.0");
    assert_eq!(cluster["standing"], "ready");
    assert_eq!(cluster["status"]["mode"], "manage");
    assert_eq!(cluster["status"]["pools"][0]["configured"], true);
    let shown = text(&setup.ask(&["status"]));
    assert!(shown.contains("Clusters: 1, 0 unhealthy."), "{shown}");
    assert!(shown.contains("READY  STARTING"), "{shown}");
    let other = setup.ask(&["status", "--cluster", "nobody"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(text(&other).contains("has no cluster \"nobody\""));
    setup.daemon.signal("TERM");
    assert_eq!(setup.daemon.ends(10).code(), Some(0));
}

/// One cluster cannot start with the daemon: the others start, the status shows the reason, and the
/// cluster starts once its kubeconfig exists. A reload in between affects only the others.
#[test]
fn broken_cluster_does_not_block_other_clusters() {
    let api = Api::start(Manner::Well, Vec::new());
    let dir = TempDir::new().expect("a directory");
    let late = dir.path().join("late");
    let hcl = format!("{LISTEN}{}{}", managed(api.kubeconfig()), cluster("late", &late));
    let setup = Setup::start(&hcl);
    setup.daemon.logged("cannot start cluster", 1);
    setup.daemon.logged("started cluster", 1);
    let of = |status: &Value, name: &str| {
        let all = status["clusters"].as_array().expect("a list").iter();
        all.clone().find(|own| own["name"] == name).expect(name).clone()
    };
    let until = |seconds, is_so: &dyn Fn(&Value) -> bool| {
        let status = within(seconds, || {
            let status = serde_json::from_slice(&setup.ask(&["status", "--json"]).stdout).ok()?;
            is_so(&status).then_some(status)
        });
        status.unwrap_or_else(|| panic!("{}", setup.daemon.log()))
    };
    let status = until(20, &|status| of(status, "it")["standing"] == "ready");
    let broken = of(&status, "late");
    assert_eq!(broken["standing"], "degraded", "{status}");
    assert_eq!(broken["is_well"], false);
    let why = broken["led_by"].as_str().expect("a reason");
    let expect = "cannot start [kubeconfig-unreadable]: cluster \"late\"";
    assert!(why.starts_with(expect), "{why}");
    let shown = text(&setup.ask(&["status"]));
    assert!(shown.contains(&format!("late: degraded\n  {expect}")), "{shown}");

    let reloaded = text(&setup.ask(&["reload", "--wait"]));
    assert!(reloaded.contains("has reloaded"), "{reloaded}");
    let worse = setup.config.0.path().join("worse.hcl");
    fs::write(&worse, cluster("worse", &late)).expect("written");
    let refused = text(&setup.ask(&["reload"]));
    assert!(refused.contains("cluster \"worse\""), "{refused}");
    assert_eq!(of(&until(5, &|_| true), "it")["standing"], "ready");
    fs::remove_file(worse).expect("removed");

    fs::copy(api.kubeconfig(), &late).expect("copied");
    let status = until(40, &|status| of(status, "late")["standing"] == "ready");
    assert_eq!(of(&status, "late")["led_by"], Value::Null);
    setup.daemon.logged("started cluster", 2);
}

/// A hanging plugin does not delay other clusters, and a kubeconfig with another plugin is read.
#[test]
fn hanging_exec_plugin_delays_no_other_cluster() {
    let api = Api::start(Manner::Well, Vec::new());
    let dir = TempDir::new().expect("a directory");
    let hung = dir.path().join("hung");
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
        clusters: [{name: a, cluster: {server: \"http://127.0.0.1:9\"}}]\n\
        contexts: [{name: a, context: {cluster: a, user: a}}]\n\
        users: [{name: a, user: {exec: {apiVersion: client.authentication.k8s.io/v1, \
        command: sleep, args: [\"60\"], interactiveMode: Never}}}]\n";
    fs::write(&hung, text).expect("written");
    let others = managed(api.kubeconfig());
    let config = Config::new(&format!("{LISTEN}{others}{}", cluster("hung", &hung)));
    let daemon = daemon(&config, "log");
    let started = |count: usize, seconds: u32| {
        let is_so = || daemon.log().matches("started cluster").count() >= count;
        assert!(within(seconds, || is_so().then_some(())).is_some(), "{}", daemon.log());
    };
    started(1, 10);
    daemon.logged("kubeconfig-late", 1);
    fs::copy(api.kubeconfig(), &hung).expect("copied");
    started(2, 40);
}

/// Only one run of the plugin is started at a time. Its last credentials remain in use meanwhile.
#[test]
fn hanging_token_refresh_runs_only_one_plugin_process() {
    let api = Api::start(Manner::Well, vec![pod("p", "100m")]);
    let dir = TempDir::new().expect("a directory");
    let (plugin, runs) = (dir.path().join("plugin"), dir.path().join("runs"));
    let text = format!(
        "echo $$ >> {runs}\n[ $(wc -l < {runs}) = 1 ] || exec sleep 600\n\
         echo '{{\"status\": {{\"token\": \"a\", \
         \"expirationTimestamp\": \"2000-01-01T00:00:00Z\"}}}}'\n",
        runs = runs.display()
    );
    fs::write(&plugin, text).expect("written");
    let exec = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
         args: [{:?}], interactiveMode: Never}}}}",
        plugin.display()
    );
    let known = fs::read_to_string(api.kubeconfig()).expect("text");
    let (before, _) = known.split_once("users:").expect("users");
    let own = format!("{before}users: [{{name: it, user: {exec}}}]\n");
    fs::write(api.kubeconfig(), own).expect("written");
    let mut setup = Setup::start(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let nodes = within(30, || Some(api.nodes()).filter(|it| !it.is_empty()));
    assert!(nodes.is_some(), "{}", setup.daemon.log());
    let ran = || {
        let ran = fs::read_to_string(&runs).unwrap_or_default();
        ran.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let hangs = within(20, || ran().get(1).cloned()).expect("a second run is started");
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!(ran().len(), 2, "only one run at a time");
    setup.daemon.signal("TERM");
    assert_eq!(setup.daemon.ends(10).code(), Some(0));
    let process = Path::new("/proc").join(hangs);
    let gone = within(5, || (!process.exists()).then_some(()));
    assert!(gone.is_some(), "it ends with the daemon");
}

/// Returns status and body of the response to an inventory request.
fn inventory(setup: &Setup, question: &Value) -> (u16, String) {
    let mut stream = UnixStream::connect(&setup.socket).expect("it listens");
    let body = question.to_string();
    let length = body.len();
    let request = format!(
        "POST /v1/inventory HTTP/1.0\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let status = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    let (_, body) = text.split_once("\r\n\r\n").expect("a body");
    (status.expect("a status"), body.to_owned())
}

#[test]
fn inventory_shows_the_contents_of_one_cluster() {
    let api = Api::start(Manner::Well, vec![pod("never", "100000")]);
    let setup = Setup::start(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    setup.status(0);
    let question = json!({"cluster": "it", "labels": ["team"], "resources": ["cpu"]});
    let explained = within(20, || {
        let (status, body) = inventory(&setup, &question);
        assert_eq!(status, 200, "{body}");
        let explained: Value = serde_json::from_str(&body).expect("JSON");
        let is_planned = explained["holds"]["pods"][0]["is_unplaced"] == true;
        is_planned.then_some(explained)
    });
    let explained = explained.expect("the pod is planned for");
    assert_eq!(explained["holds"]["pods"][0]["name"], "a/never");
    let lines = explained["timeline"].as_array().expect("a list");
    assert!(lines.iter().any(|own| own["what"] == "cannot schedule pod"), "{explained:#}");
    let (status, body) = inventory(&setup, &json!({"cluster": "other\u{1b}"}));
    assert_eq!(status, 404);
    assert!(body.contains("no cluster \"other \""), "{body}");
    let many: Vec<String> = (0..17).map(|own| own.to_string()).collect();
    let many = json!({"cluster": "it", "labels": many});
    assert_eq!(inventory(&setup, &many).0, 400);
    assert_eq!(inventory(&setup, &json!({"labels": []})).0, 422);
}

#[test]
fn unresponsive_cluster_is_reported_unhealthy() {
    let api = Api::start(Manner::Hang, Vec::new());
    let setup = Setup::start(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let status = setup.status(2);
    assert_eq!(status["clusters"][0]["is_well"], false);
}

#[test]
fn reload_that_unmanages_too_many_nodes_is_rejected() {
    let apis = [(); 2].map(|()| Api::start(Manner::Well, vec![pod("p", "1500m")]));
    let one = |name: &str, api: &Api, mode: &str| {
        let own = cluster(name, api.kubeconfig());
        own.replacen("{\n", &format!("{{\n  mode = \"{mode}\"\n"), 1)
    };
    let head = "outrigger { installation = \"it\" }\nfleet { max_disrupted_per_reload = 0 }\n";
    let stays = format!("{LISTEN}{head}{}", one("stays", &apis[0], "manage"));
    let goes = |mode| one("goes", &apis[1], mode);
    let setup = Setup::start(&format!("{stays}{}", goes("manage")));
    setup.daemon.logged("launched claim", 2);
    setup.config.write(&stays);
    let refused = setup.ask(&["reload"]);
    let printed = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{printed}");
    assert!(printed.contains("1 of 2 nodes unmanaged, those of goes,"), "{printed}");
    // A renamed installation would unmanage all nodes.
    let renamed = head.replace("\"it\"", "\"other\"");
    setup.config.write(&format!("{stays}{}", goes("manage")).replace(head, &renamed));
    let printed = text(&setup.ask(&["reload"]));
    assert!(printed.contains("2 of 2 nodes unmanaged"), "{printed}");
    for then in [goes("observe"), String::new()] {
        setup.config.write(&format!("{stays}{then}"));
        let done = setup.ask(&["reload"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    }
}

#[test]
fn reload_command_waits_and_reports_why_it_failed() {
    let api = Api::start(Manner::Well, Vec::new());
    let good = format!("{LISTEN}{}", managed(api.kubeconfig()));
    let setup = Setup::start(&good);
    setup.status(0);
    let done = setup.ask(&["reload"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    setup.config.write("cluster {");
    let refused = setup.ask(&["reload"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused).contains("the previous configuration stays in effect"),
        "{}",
        text(&refused)
    );
    // The fault is reported until it is fixed.
    let status = setup.status(2);
    assert!(status["reload_fault"].is_string(), "{status}");
    assert_eq!(status["clusters"][0]["standing"], "ready");
    let more = "pool \"new\" {\n  weight = 3\n}\n";
    setup.config.write(&format!("{good}{more}"));
    assert_eq!(setup.ask(&["reload"]).status.code(), Some(0));
    setup.status(0);
    setup.daemon.logged("reload requested", 3);
    setup.daemon.logged("configuration changed", 2);
    setup.daemon.logged(r#"+ pool \"new\": weight = 3"#, 1);
}

#[test]
fn socket_of_a_dead_daemon_is_replaced_but_not_of_a_running_one() {
    let api = Api::start(Manner::Well, Vec::new());
    let mut setup = Setup::start(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    setup.daemon.signal("KILL");
    setup.daemon.ends(5);
    let dead = setup.ask(&["status"]);
    assert_eq!(dead.status.code(), Some(1));
    assert!(text(&dead).contains("systemctl start outrigger"), "{}", text(&dead));
    let first = daemon(&setup.config, "first");
    first.logged("serving status and reload", 1);
    let second = daemon(&setup.config, "second");
    second.logged("another daemon is running", 1);
    setup.status(0);
}

#[test]
fn missing_socket_is_named_in_the_error() {
    let nowhere = Path::new("/nowhere/admin.sock");
    let output = run(&["status", "--socket", nowhere.to_str().expect("UTF-8")], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("/nowhere/admin.sock"));
}

#[test]
fn completions_and_manual_pages_cover_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let printed = text(&run(&["completions", shell], ""));
        assert!(printed.contains("simulate") && printed.contains("explain"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let into = dir.path().join("man");
    let done = run(&["man", into.to_str().expect("UTF-8")], "");
    assert_eq!(done.status.code(), Some(0), "{}", text(&done));
    let page = |name: &str| fs::read_to_string(into.join(name)).expect(name);
    assert!(page("outrigger.1").contains("outrigger"));
    assert!(page("outrigger-doctor.1").contains("doctor"));
}
