//! Checks each RBAC permission that the daemon needs with a SelfSubjectAccessReview.

use futures::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview as Review,
    SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::doctor::codes::DoctorCode;
use crate::doctor::options::{DoctorRun, LIMIT};
use crate::doctor::report::Check;
use crate::host::text;
use crate::kubernetes::rbac::{RbacRule, needed_rules};
use crate::model::cluster::Cluster;

/// Number of access reviews that run in parallel.
const AT_ONCE: usize = 8;

/// The result for one verb.
enum AccessAnswer {
    Allowed,
    Denied,
    /// The request failed. The value is the error.
    Silent(String),
}

/// Checks all permissions.
pub(super) async fn check_permissions(
    client: &Client,
    cluster: &Cluster,
    scope: &DoctorRun,
) -> Check {
    if let Some(left_out) = scope.skipped_topic("rights") {
        return left_out;
    }
    let rights = needed_rules(cluster);
    let reviews = rights.iter().map(|right| async move {
        let mut answers = Vec::with_capacity(right.verbs.len());
        for verb in right.verbs {
            let answer = scope.within(review_access(client, right, verb)).await;
            answers.push((
                *verb,
                answer.unwrap_or_else(|| {
                    AccessAnswer::Silent(format!("no response within {} s", LIMIT.as_secs()))
                }),
            ));
        }
        (right, answers)
    });
    let reviews = stream::iter(reviews).buffered(AT_ONCE);
    let reviews: Vec<(&RbacRule<'_>, Vec<(&str, AccessAnswer)>)> = reviews.collect().await;
    let count: usize = reviews.iter().map(|(_, answers)| answers.len()).sum();
    let lacks = reviews.iter().filter_map(|(right, it)| missing_permission(right, it));
    let lacks = lacks.collect();
    let mode = cluster.mode.as_str();
    let finding = format!("checked {count} that mode = \"{mode}\" needs");
    Check::from_parts("rights", &finding, lacks)
}

/// Reports the missing verbs of a permission, if any.
fn missing_permission(right: &RbacRule<'_>, answers: &[(&str, AccessAnswer)]) -> Option<Check> {
    let resource = right.describe_resource();
    let silent = answers.iter().find_map(|(verb, answer)| match answer {
        AccessAnswer::Silent(why) => Some(format!("cannot check {verb} {resource}: {why}")),
        _ => None,
    });
    if let Some(why) = silent {
        return Some(Check::skipped(&resource, &why, None));
    }
    let denied = answers.iter().filter(|(_, answer)| matches!(answer, AccessAnswer::Denied));
    let denied: Vec<&str> = denied.map(|(verb, _)| *verb).collect();
    if denied.is_empty() {
        return None;
    }
    let verbs = denied.join(", ");
    let name = format!("{verbs} {resource}");
    let fix =
        format!("add to the {}: {}", right.role.granting_object(), right.rule_for_verbs(&denied));
    let (option, turned_off) = match right.purpose.setting_name() {
        Some(option) => (format!(", for {option}"), right.purpose.is_optional()),
        None => (String::new(), false),
    };
    let why = format!("the user may not {name}{option}");
    let name = (name.as_str(), DoctorCode::RightMissing.code());
    Some(match turned_off {
        true => Check::warning(name, &why, &fix),
        false => Check::failed(name, &why, &fix),
    })
}

/// Checks one verb.
async fn review_access(client: &Client, right: &RbacRule<'_>, verb: &str) -> AccessAnswer {
    let spec = if right.resource.starts_with('/') {
        SelfSubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: non_empty(right.resource),
                verb: non_empty(verb),
            }),
            resource_attributes: None,
        }
    } else {
        let (resource, part) = right.resource.split_once('/').unwrap_or((right.resource, ""));
        SelfSubjectAccessReviewSpec {
            non_resource_attributes: None,
            resource_attributes: Some(ResourceAttributes {
                group: non_empty(right.group),
                resource: non_empty(resource),
                subresource: non_empty(part),
                name: non_empty(right.name),
                namespace: right.role.namespace().and_then(non_empty),
                verb: non_empty(verb),
                ..ResourceAttributes::default()
            }),
        }
    };
    let review = Review { spec, ..Review::default() };
    let reviews: Api<Review> = Api::all(client.clone());
    match reviews.create(&PostParams::default(), &review).await {
        Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {
            AccessAnswer::Allowed
        }
        Ok(_) => AccessAnswer::Denied,
        Err(error) => AccessAnswer::Silent(text::error_chain(&error)),
    }
}

fn non_empty(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}
