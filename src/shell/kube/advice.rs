//! What to do about an error of a cluster's API, where that is known.
//! It must not know what was asked for.

use std::path::Path;

use crate::shell::kube::cause::Cause;
use crate::shell::text;

/// What went wrong, where, and what to check, in one line.
pub(crate) fn explained(error: &kube::Error, server: &str, kubeconfig: &Path) -> String {
    let what = text::chain(error);
    let code = Cause::of(error, &what).map_or_else(String::new, |own| format!(" [{}]", own.code()));
    match advice(error, &what) {
        Some(advice) => format!(
            "{what} ({server}); {advice} ({}){code}",
            kubeconfig.display()
        ),
        None => format!("{what} ({server}){code}"),
    }
}

/// What to check. Causes below a call are only told apart by their texts: each layer between wraps
/// them in types of its own.
fn advice(error: &kube::Error, what: &str) -> Option<&'static str> {
    if let kube::Error::Api(status) = error {
        return match status.code {
            403 => Some("grant the user of the kubeconfig what it is denied here"),
            401 => Some("write credentials that this API accepts into the kubeconfig"),
            _ => None,
        };
    }
    let what = what.to_lowercase();
    let says = |any: &[&str]| any.iter().any(|it| what.contains(it));
    if says(&["connection refused"]) {
        Some("nothing listens there: check that the API server runs and the kubeconfig's address")
    } else if says(&["certificate", "tls", "handshake", "corrupt message"]) {
        Some("check the address and certificate-authority-data of the kubeconfig")
    } else if says(&["dns error", "failed to lookup"]) {
        Some("no such host: check the address in the kubeconfig")
    } else if says(&[
        "timed out",
        "timeout",
        "deadline",
        "unreachable",
        "no route",
    ]) {
        Some("check the way there, firewalls included, and the address in the kubeconfig")
    } else if says(&["exec", "auth"]) {
        Some("check the credentials in the kubeconfig, and the plugin it names")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kube::core::Status;

    use super::explained;

    #[test]
    fn an_error_says_where_it_came_from_and_what_to_check() {
        let check = |error: &kube::Error, expect: &str| {
            let text = explained(error, "https://a:1", Path::new("/k"));
            assert!(text.contains(expect), "{text}");
            assert!(text.contains("https://a:1"), "{text}");
        };
        let service = |text: &str| kube::Error::Service(text.into());
        check(&service("tcp: Connection refused"), "nothing listens there");
        check(&service("tcp: Connection refused"), "[api-refused]");
        check(
            &service("invalid peer certificate: Expired"),
            "[api-expired]",
        );
        let refused = "received fatal alert: CertificateExpired";
        check(&service(refused), "[api-unauthorized]");
        let plugin = "auth exec command 'aws' failed: the token has expired";
        check(&service(plugin), "[api-credentials]");
        check(
            &service("invalid peer certificate"),
            "certificate-authority-data",
        );
        check(&service("deadline has elapsed"), "firewalls");
        check(&service("odd"), "odd");
        let denied = Status::failure("no", "Forbidden").with_code(403);
        check(&kube::Error::Api(denied.boxed()), "grant the user");
        let unknown = Status::failure("no", "Unauthorized").with_code(401);
        check(&kube::Error::Api(unknown.boxed()), "[api-unauthorized]");
    }
}
