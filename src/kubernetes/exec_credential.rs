//! Runs the exec plugin of a kubeconfig. A late plugin is killed with its child processes.
//!
//! Source: the Kubernetes API `client.authentication.k8s.io/v1`, ExecCredential.

use std::io::{self, IsTerminal, stdin};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, copy, sink};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::host::text;
use crate::outbound::process_group::ProcessGroup;

/// Timeout of a plugin, from the start of the plugin.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent plugins. Otherwise the plugins of a hundred clusters would run at
/// the same time and all be slow. Waiting plugins start in order.
const AT_ONCE: usize = 16;
/// Time to read the remaining stderr of an exited plugin. A child process may keep its stderr open.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Maximum size of the output of a plugin. A certificate and its key have a few kB.
const PRINTED: u64 = 1 << 20;
/// Maximum size of the stderr of a plugin that is kept.
const SAID: u64 = 4 << 10;

/// Why there are no credentials. Errors omit the output, arguments and environment of the plugin,
/// because they may contain secrets.
#[derive(Debug, Error)]
pub(crate) enum PluginError {
    #[error("the exec plugin has no command")]
    NoCommand,
    #[error("the exec plugin requires a terminal (interactiveMode: Always)")]
    Asks,
    #[error("cannot start the exec plugin {0:?}")]
    Start(String, #[source] io::Error),
    #[error("cannot read the output of the exec plugin")]
    Hear(#[source] io::Error),
    #[error("the exec plugin returned no credentials within {} s", LIMIT.as_secs())]
    Late,
    #[error("the exec plugin failed, {0}: {1}")]
    Failed(ExitStatus, String),
    #[error("the exec plugin printed no credentials")]
    Odd,
}

/// The output of a plugin: a token, a certificate with its key, or both.
pub(super) struct Credentials {
    pub(super) token: Option<String>,
    /// The certificate and its key, as PEM.
    pub(super) identity: Option<(String, String)>,
    pub(super) until: Option<Timestamp>,
}

#[derive(Deserialize)]
struct PluginOutput {
    status: CredentialStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CredentialStatus {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Waits for a slot, then runs a plugin for at most `LIMIT`.
pub(super) async fn request_credentials(exec: &ExecConfig) -> Result<Credentials, PluginError> {
    // The semaphore is never closed.
    let _turn = TURNS.acquire().await;
    match timeout(LIMIT, run_plugin(exec)).await {
        Ok(printed) => parse_output(&printed?),
        Err(_) => Err(PluginError::Late),
    }
}

async fn run_plugin(exec: &ExecConfig) -> Result<Vec<u8>, PluginError> {
    let program = exec.command.as_ref().ok_or(PluginError::NoCommand)?;
    // The plugin may prompt the user at a terminal, for example for a code.
    let is_asking = match exec.interactive_mode {
        Some(ExecInteractiveMode::Never) => false,
        Some(ExecInteractiveMode::Always) if !stdin().is_terminal() => {
            return Err(PluginError::Asks);
        }
        _ => stdin().is_terminal(),
    };
    let mut spec = json!({"interactive": is_asking});
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = json!(cluster);
    }
    let info = json!({
        "apiVersion": exec.api_version,
        "kind": "ExecCredential",
        "spec": spec,
    });
    let mut command = Command::new(program);
    command
        .args(exec.args.iter().flatten())
        .envs(exec.env.iter().flatten().filter_map(|variable| {
            let (name, value) = (variable.get("name")?, variable.get("value")?);
            Some((name, value))
        }))
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if !is_asking {
        // Only a plugin that does not prompt gets its own process group, in which it could not read
        // from the terminal.
        command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    }
    let mut process =
        command.spawn().map_err(|error| PluginError::Start(text::bounded_line(program), error))?;
    let group = (!is_asking).then(|| ProcessGroup::of_process(&process));
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let (mut printed, mut stderr_start) = (Vec::new(), Vec::new());
    let (reading, status) = {
        let exited = async {
            let ended = tokio::join!(read_start(stdout, PRINTED, &mut printed), process.wait());
            sleep(LAST_WORDS).await;
            ended
        };
        let (mut exited, mut errors_read) =
            (pin!(exited), pin!(read_start(stderr, SAID, &mut stderr_start)));
        tokio::select! {
            ended = &mut exited => ended,
            _ = &mut errors_read => exited.await,
        }
    };
    // Background processes of the plugin, such as an agent, are not killed.
    group.into_iter().for_each(ProcessGroup::keep_alive);
    reading.map_err(PluginError::Hear)?;
    let status = status.map_err(PluginError::Hear)?;
    if !status.success() {
        let words = text::bounded_line(String::from_utf8_lossy(&stderr_start).trim());
        return Err(PluginError::Failed(status, words));
    }
    Ok(printed)
}

/// Reads a stream to its end, and keeps only the first `limit` bytes.
async fn read_start(
    from: Option<impl AsyncRead + Unpin>,
    limit: u64,
    start: &mut Vec<u8>,
) -> io::Result<()> {
    if let Some(mut from) = from {
        (&mut from).take(limit).read_to_end(start).await?;
        copy(&mut from, &mut sink()).await?;
    }
    Ok(())
}

fn parse_output(printed: &[u8]) -> Result<Credentials, PluginError> {
    let text = str::from_utf8(printed).map_err(|_| PluginError::Odd)?;
    let printed: PluginOutput = serde_saphyr::from_str(text).map_err(|_| PluginError::Odd)?;
    let status = printed.status;
    let identity = status.client_certificate_data.zip(status.client_key_data);
    let token = status.token.map(|token| token.trim().to_owned());
    let token = token.filter(|token| !token.is_empty());
    if token.is_none() && identity.is_none() {
        return Err(PluginError::Odd);
    }
    Ok(Credentials { token, identity, until: status.expiration_timestamp })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;

    /// A plugin that is a script for `sh`.
    fn script(text: &str) -> ExecConfig {
        let config = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", text],
            "interactiveMode": "Never",
        });
        serde_json::from_value(config).expect("a plugin")
    }

    async fn error_of(exec: &ExecConfig) -> String {
        let ran = request_credentials(exec).await;
        text::error_chain(&ran.err().expect("no credentials"))
    }

    #[tokio::test]
    async fn credentials_printed_by_the_plugin_are_read() {
        let until = "2099-01-01T00:00:00Z";
        let print = |status: &str| script(&format!("echo '{{\"status\": {{{status}}}}}'"));
        let exec = print(&format!("\"token\": \" abc\", \"expirationTimestamp\": \"{until}\""));
        let found = request_credentials(&exec).await.expect("a token");
        assert_eq!(found.token.as_deref(), Some("abc"));
        assert_eq!(found.until, Some(until.parse().expect("a time")));
        assert!(found.identity.is_none());
        let exec = print("\"clientCertificateData\": \"c\", \"clientKeyData\": \"k\"");
        let found = request_credentials(&exec).await.expect("an identity");
        assert_eq!(found.identity, Some(("c".to_owned(), "k".to_owned())));
        for odd in ["", "\"token\": \"\"", "\"clientKeyData\": \"k\"", "\"token\": {}"] {
            assert_eq!(error_of(&print(odd)).await, "the exec plugin printed no credentials");
        }
        let many = script("head -c 2000000 /dev/zero; head -c 2000000 /dev/zero >&2");
        assert_eq!(error_of(&many).await, "the exec plugin printed no credentials");
    }

    #[tokio::test]
    async fn plugin_receives_env_and_exec_info_of_the_kubeconfig() {
        let print = "printf '{\"status\": {\"token\": \"%s\"}}' \
                     \"$A $(echo \"$KUBERNETES_EXEC_INFO\" | tr -d '\"\\n')\"";
        let mut exec = script(print);
        let variable = [("name", "A"), ("value", "b")];
        let variable = variable.map(|(name, value)| (name.to_owned(), value.to_owned()));
        exec.env = Some(vec![HashMap::from(variable)]);
        let token = request_credentials(&exec).await.expect("a token").token;
        let token = token.expect("a token");
        assert!(token.starts_with("b {apiVersion:client.authentication.k8s.io/v1,"), "{token}");
        assert!(token.contains("kind:ExecCredential"), "{token}");
        assert!(token.contains("interactive:false"), "{token}");
    }

    #[tokio::test]
    async fn plugin_failure_is_reported_without_secrets() {
        let mut exec = script("echo no such profile >&2; echo s3cret; exit 3");
        let message = error_of(&exec).await;
        assert_eq!(message, "the exec plugin failed, exit status: 3: no such profile");
        exec.command = Some("/nope".to_owned());
        let message = error_of(&exec).await;
        assert!(
            message.starts_with("cannot start the exec plugin \"/nope\": No such file"),
            "{message}"
        );
        exec.command = None;
        assert_eq!(error_of(&exec).await, "the exec plugin has no command");
    }

    #[tokio::test]
    async fn background_process_of_a_plugin_is_neither_awaited_nor_killed() {
        let dir = TempDir::new().expect("a directory");
        let pid = dir.path().join("pid");
        let text = format!(
            "sleep 60 >/dev/null & echo $! > {}; echo '{{\"status\": {{\"token\": \"a\"}}}}'",
            pid.display()
        );
        let result = timeout(Duration::from_secs(10), request_credentials(&script(&text))).await;
        assert!(result.expect("no timeout").is_ok());
        let pid = std::fs::read_to_string(&pid).expect("the plugin has started");
        assert!(is_running(pid.trim()));
        let ended = Command::new("kill").arg(pid.trim()).status().await;
        assert!(ended.expect("kill runs").success());
    }

    /// Returns whether a process exists and is not a zombie.
    fn is_running(pid: &str) -> bool {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn cancelled_plugin_is_killed_with_its_children() {
        let dir = TempDir::new().expect("a directory");
        let pids = dir.path().join("pids");
        let text = format!("sleep 60 & echo $$ $! > {}; wait", pids.display());
        let exec = script(&text);
        let given_up = timeout(Duration::from_secs(2), request_credentials(&exec)).await;
        assert!(given_up.is_err());
        let pids = std::fs::read_to_string(&pids).expect("the plugin has started");
        let mut pids: Vec<_> = pids.split_whitespace().collect();
        assert_eq!(pids.len(), 2);
        for _ in 0..100 {
            pids.retain(|pid| is_running(pid));
            if pids.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{pids:?} still run");
    }
}
