//! Checks the configuration, the files it references, and which files of this host the systemd unit
//! can read.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::config::diagnostic::{Diagnostic, Severity};
use crate::doctor::codes::DoctorCode;
use crate::doctor::options::DoctorRun;
use crate::doctor::report::Check;
use crate::host::text::quote_argument;
use crate::model::cluster::Cluster;
use crate::model::node_class::bootstrap::{Bootstrap, SecretSource};

/// Paths that `ProtectHome=yes` of the unit hides.
const HIDDEN: [&str; 3] = ["/home", "/root", "/run/user"];

/// Permission bits for all users and for the group.
const READABLE_BY_ALL: u32 = 0o004;
const READABLE_BY_GROUP: u32 = 0o040;

/// Reports an invalid configuration.
pub(super) fn invalid_config(problems: &[Diagnostic]) -> Check {
    let finding = "the daemon would not start with this configuration";
    let problems = problems.iter().map(diagnostic_check).collect();
    Check::from_parts("configuration", finding, problems)
}

/// Reports a valid configuration.
pub(super) fn valid_config(config: &Config) -> Check {
    if config.clusters.is_empty() {
        let why = "the configuration has no cluster, so the daemon does not start";
        let fix = "add cluster \"NAME\" { kubeconfig { path = \"/etc/outrigger/kubeconfig\" } }";
        return Check::failed(("configuration", DoctorCode::NoCluster.code()), why, fix);
    }
    let pools: usize = config.clusters.iter().map(|cluster| cluster.pools.len()).sum();
    let finding = format!("clusters: {}, pools: {pools}", config.clusters.len());
    let warnings = config.warnings.iter().map(diagnostic_check).collect();
    Check::from_parts("configuration", &finding, warnings)
}

/// Reports a diagnostic of the configuration in short form.
fn diagnostic_check(problem: &Diagnostic) -> Check {
    let location = problem
        .ranges
        .first()
        .map_or(String::new(), |range| format!("{}:{}: ", range.file, range.start.line));
    let why = format!("{location}{}", problem.detail);
    let fix = problem.help.as_deref();
    let fix = fix.unwrap_or("outrigger validate shows the location");
    let code = problem.code.as_str();
    match problem.severity {
        Severity::Error => Check::failed((code, code), &why, fix),
        Severity::Warning => Check::warning((code, code), &why, fix),
    }
}

/// Checks which files the daemon could not read on this host.
pub(super) fn check_host(clusters: &[Cluster], scope: &DoctorRun) -> Check {
    if let Some(left_out) = scope.skipped_topic("host") {
        return left_out;
    }
    let mut checks = vec![check_service()];
    for path in secret_files(clusters) {
        checks.push(check_secret(&format!("file {}", path.display()), &path));
        checks.extend(check_hidden(&path));
    }
    if clusters.iter().any(uses_aws) {
        checks.extend(check_aws_profile());
    }
    Check::from_parts("host", "", checks)
}

/// Reports whether systemd started this process.
#[expect(clippy::disallowed_methods, reason = "the service manager speaks by the environment")]
fn check_service() -> Check {
    let mut variables = ["NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"].into_iter();
    let finding = if variables.any(|name| std::env::var_os(name).is_some()) {
        "started by systemd, with the secrets and the environment of the unit"
    } else {
        "not started by systemd: secrets and environment of the unit are not visible here"
    };
    Check::ok("service", finding)
}

/// Returns files with secrets that clusters reference, except kubeconfigs.
fn secret_files(clusters: &[Cluster]) -> Vec<PathBuf> {
    let sources = clusters.iter().flat_map(|cluster| &cluster.node_classes);
    let sources = sources.filter_map(|source| match &source.bootstrap {
        Bootstrap::Eks => None,
        Bootstrap::Kubeadm { token } => Some(token),
        Bootstrap::K3s(agent) | Bootstrap::Rke2(agent) => Some(&agent.token),
        Bootstrap::Talos { machine_config } => Some(machine_config),
        Bootstrap::Custom { token, .. } => token.as_ref(),
    });
    let paths = sources.filter_map(|source| match source {
        SecretSource::File(path) => Some(path.clone()),
        SecretSource::SsmParameter(_) | SecretSource::Minted => None,
    });
    let mut paths: Vec<PathBuf> = paths.collect();
    paths.sort();
    paths.dedup();
    paths
}

/// Checks that a secret file exists, that the daemon can read it, and that other users cannot.
pub(super) fn check_secret(name: &str, path: &Path) -> Check {
    let (display, quoted_path) = (path.display(), quote_argument(&path.to_string_lossy()));
    let install = format!("install -o outrigger -g outrigger -m 0400 FILE {quoted_path}");
    let read = fs::metadata(path).and_then(|metadata| File::open(path).map(|_| metadata));
    let metadata = match read {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let why = format!("{display} does not exist");
            return Check::failed((name, DoctorCode::FileMissing.code()), &why, &install);
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let why = format!("the current user cannot read {display}");
            let fix = format!("chown outrigger {quoted_path} && chmod u+r {quoted_path}");
            return Check::failed((name, DoctorCode::FileUnreadable.code()), &why, &fix);
        }
        Err(error) => {
            let why = format!("{display}: {error}");
            return Check::failed((name, DoctorCode::FileUnreadable.code()), &why, &install);
        }
    };
    if !metadata.is_file() {
        let why = format!("{display} is not a regular file");
        return Check::failed((name, DoctorCode::FileUnreadable.code()), &why, &install);
    }
    if metadata.mode() & READABLE_BY_ALL != 0 {
        let why = format!("every user of this host can read {display}");
        let name_and_code = (name, DoctorCode::FileExposed.code());
        return Check::warning(name_and_code, &why, &format!("chmod o-rwx {quoted_path}"));
    }
    let group = metadata.gid() != 0 && metadata.mode() & READABLE_BY_GROUP != 0;
    if metadata.uid() == 0 && !group {
        let why = format!("only root can read {display}, and the unit runs as the user outrigger");
        let name_and_code = (name, DoctorCode::FileOfRoot.code());
        return Check::warning(name_and_code, &why, &format!("chown outrigger {quoted_path}"));
    }
    Check::ok(name, &format!("{display}"))
}

fn is_hidden(path: &Path) -> bool {
    HIDDEN.iter().any(|home| path.starts_with(home))
}

/// Reports a path that the unit hides from the daemon.
pub(super) fn check_hidden(path: &Path) -> Option<Check> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if !is_hidden(path) && !is_hidden(&real) {
        return None;
    }
    let display = path.display();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let why = format!("{display} is below a home directory, which ProtectHome= of the unit hides");
    let (source, target) = (path.to_string_lossy(), format!("/etc/outrigger/{name}"));
    let fix = format!(
        "install -o outrigger -g outrigger -m 0400 {} {}, and use that path in the configuration",
        quote_argument(&source),
        quote_argument(&target)
    );
    Some(Check::warning(("home", DoctorCode::HomeHidden.code()), &why, &fix))
}

/// Returns whether EC2 launches the nodes of a cluster.
pub(super) fn uses_aws(cluster: &Cluster) -> bool {
    let elsewhere = cluster.exec.is_some() || cluster.simulated.is_some();
    !cluster.region.is_empty() && !elsewhere
}

/// Reports AWS credentials in a home directory, which the unit cannot read.
#[expect(clippy::disallowed_methods, reason = "the SDK finds its profile by the environment")]
fn check_aws_profile() -> Option<Check> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let path = [("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")]
        .into_iter()
        .map(|(variable, file)| match std::env::var_os(variable) {
            Some(path) => PathBuf::from(path),
            None => home.join(".aws").join(file),
        })
        .find(|path| is_hidden(path) && path.exists())?;
    let why = format!(
        "this shell finds AWS credentials in {}, which ProtectHome= of the unit hides",
        path.display()
    );
    let fix = "give the host an instance role (terraform/modules/host), or set \
               AWS_SHARED_CREDENTIALS_FILE=/etc/outrigger/aws in /etc/default/outrigger";
    Some(Check::warning(("home", DoctorCode::HomeHidden.code()), &why, fix))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{check_hidden, check_secret};

    #[test]
    fn paths_in_home_directories_are_hidden_by_the_unit() {
        for (path, expect) in [
            ("/home/me/.kube/config", true),
            ("/root/.kube/config", true),
            ("/run/user/1000/token", true),
            ("/etc/outrigger/kubeconfig", false),
            ("/homes/x", false),
        ] {
            assert_eq!(check_hidden(Path::new(path)).is_some(), expect, "{path}");
        }
    }

    #[test]
    fn symlink_into_a_home_directory_is_hidden_by_the_unit() {
        let dir = tempfile::tempdir().expect("a directory");
        let link = dir.path().join("kubeconfig");
        std::os::unix::fs::symlink("/root", &link).expect("a link");
        assert!(check_hidden(&link).is_some());
        assert!(check_secret("a", &link).has_failed(), "it is a directory");
    }
}
