//! `outrigger top` on a real terminal (tmux) with a real daemon.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::control_socket::{Setup, daemon};
use super::kube_api::{Api, Manner, list};
use super::process::within;
use super::{LISTEN, managed, pod};
use crate::binary::{outrigger, run};

/// A tmux server with one window; dropping it ends both.
struct Tmux {
    dir: tempfile::TempDir,
}

impl Tmux {
    /// Runs a script in a window of this size. Returns `None` if tmux is missing.
    fn start(script: &str, columns: &str, lines: &str) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("script");
        fs::write(&path, script).expect("written");
        let path = path.to_str().expect("UTF-8").to_owned();
        let own = Self { dir };
        own.try_ask(&["-V"])?;
        let start = ["new-session", "-d", "-x", columns, "-y", lines, "sh", &path];
        own.ask(&start);
        Some(own)
    }

    /// Runs a tmux command. Returns `None` if tmux is missing.
    fn try_ask(&self, arguments: &[&str]) -> Option<Output> {
        let mut command = Command::new("tmux");
        command.args(["-L", "outrigger", "-f", "/dev/null"]);
        command.args(arguments);
        command.env("TMUX_TMPDIR", self.dir.path());
        command.env_remove("TMUX").env_remove("NO_COLOR");
        // It draws bars only in a UTF-8 locale.
        command.env("LC_ALL", "C.UTF-8");
        command.output().ok()
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = self.try_ask(arguments).expect("it runs");
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    }

    fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// Waits until the screen has all of these words, and returns it.
    fn shows(&self, words: &[&str]) -> String {
        let has = || {
            let screen = self.screen();
            let all = words.iter().all(|own| screen.contains(own));
            all.then_some(screen)
        };
        let shown = within(20, has);
        shown.unwrap_or_else(|| panic!("{words:?} on:\n{}", self.screen()))
    }

    fn press(&self, key: &str) {
        self.ask(&["send-keys", key]);
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        drop(self.try_ask(&["kill-server"]));
    }
}

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "somebodys", "uid": "u", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"node.kubernetes.io/instance-type": "m5.large", "team": "search"}},
        "status": {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

#[test]
fn top_shows_the_fleet_on_a_terminal_of_any_size() {
    let name = "end_to_end::top::top_shows_the_fleet_on_a_terminal_of_any_size";
    let pods = vec![pod("fits", "3"), pod("never", "100000")];
    let api = Api::with(Manner::Well, [("nodes", list(vec![node()])), ("pods", list(pods))]);
    let mut setup = Setup::start(&format!("{LISTEN}{}", managed(api.kubeconfig())));
    let top = format!(
        "{} top --socket {} --interval 300ms --extra-labels team",
        outrigger(),
        setup.socket.display()
    );
    let script = format!(
        "echo before\n{top}\necho \"first $?\"\n\
         timeout --foreground -s TERM 2 {top}\necho \"second $?\"\n\
         stty -a | tr ' ' '\\n' | grep icanon\nexec sleep 600\n"
    );
    let Some(tmux) = Tmux::start(&script, "100", "30") else {
        println!("SKIP {name}: tmux");
        return;
    };
    let fleet = tmux.shows(&["1 cluster ", "CLUSTER", "it ", "manage", "this host", "ready"]);
    assert!(fleet.contains("q quit"), "{fleet}");
    tmux.press("Enter");
    tmux.shows(&["CAPACITY", "somebodys", "m5.large", "search", "TEAM", "launched"]);
    tmux.press("3");
    tmux.shows(&["a/never", "needs cpu 100000", "a/fits"]);
    tmux.press("4");
    tmux.shows(&["planned claim", "cannot schedule", "launched claim"]);

    tmux.ask(&["resize-window", "-x", "20", "-y", "5"]);
    tmux.shows(&["4 timeline", "q quit"]);
    tmux.press("Tab");
    tmux.shows(&["1 fleet", "it"]);
    tmux.ask(&["resize-window", "-x", "3", "-y", "1"]);
    tmux.press("Tab");
    tmux.press("Down");
    tmux.ask(&["resize-window", "-x", "120", "-y", "30"]);
    tmux.shows(&["CAPACITY", "somebodys"]);

    // The daemon is killed and restarted.
    setup.daemon.signal("KILL");
    setup.daemon.ends(5);
    tmux.shows(&["no response for ", "somebodys", "systemctl start outrigger"]);
    let again = daemon(&setup.config, "again");
    again.logged("serving status and reload", 1);
    let is_back = || (!tmux.screen().contains("no response")).then_some(());
    assert!(within(20, is_back).is_some(), "{}", tmux.screen());

    // The earlier screen content is restored, and the terminal is in line mode again.
    tmux.press("q");
    tmux.shows(&["before", "first 0"]);
    let ended = tmux.shows(&["before", "first 0", "second 124", "icanon"]);
    assert!(!ended.contains("-icanon"), "{ended}");
}

#[test]
fn top_without_a_terminal_suggests_status() {
    let output = run(&["top", "--socket", "/nowhere/admin.sock"], "");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("requires a terminal") && errors.contains("outrigger status"),
        "{errors}"
    );
    let output = run(&["top", "--node-sort", "colour"], "");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("use one of name, pool"), "{errors}");
    let output = run(&["top", "--interval", "1ms"], "");
    assert_eq!(output.status.code(), Some(1));
}
