//! Reads the status of instances.
//!
//! Source: spec/aws.md §6.2.

use aws_sdk_ec2::types::{Filter, InstanceStatus, InstanceStatusSummary, StatusType};

use crate::ec2::instance_status::{EVENT_CODES, Scheduled, StatusCheckDetail, StatusRow};
use crate::model::id::InstanceId;
use crate::providers::aws::clients::AwsClients;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::network::{filter, to_timestamp};
use crate::providers::aws::paginate::{self, PAGE};

/// Returns all instances of the account and region with problems. Healthy instances are not listed.
pub(crate) async fn unhealthy_instances(account: &AwsClients) -> Result<Vec<StatusRow>, AwsError> {
    let codes = EVENT_CODES.map(str::to_owned).to_vec();
    let scheduled = Filter::builder().name("event.code").set_values(Some(codes));
    let mut rows = Vec::new();
    // EC2 combines filters with "and", but these are alternatives.
    for condition in [
        filter("instance-status.status", "impaired"),
        filter("system-status.status", "impaired"),
        scheduled.build(),
    ] {
        let call = account.ec2.describe_instance_status().filters(condition);
        let pages = call.into_paginator().page_size(PAGE).send();
        let listed = paginate::collect(account, "DescribeInstanceStatus", pages, |page, listed| {
            listed.extend(page.instance_statuses().iter().filter_map(status_row));
        });
        rows.extend(listed.await?);
    }
    Ok(rows)
}

fn status_row(status: &InstanceStatus) -> Option<StatusRow> {
    let events = status.events().iter().map(|event| Scheduled {
        code: event.code().map_or("", |code| code.as_str()).to_owned(),
        description: event.description().unwrap_or_default().to_owned(),
        not_before: event.not_before().and_then(to_timestamp),
    });
    let mut checks = status_checks(status.instance_status());
    checks.extend(self::status_checks(status.system_status()));
    Some(StatusRow {
        instance: InstanceId::from(status.instance_id()?),
        checks,
        events: events.collect(),
    })
}

fn status_checks(summary: Option<&InstanceStatusSummary>) -> Vec<StatusCheckDetail> {
    let details = summary.map(|summary| summary.details()).unwrap_or_default();
    details
        .iter()
        .map(|detail| StatusCheckDetail {
            failed: detail.status() == Some(&StatusType::Failed),
            since: detail.impaired_since().and_then(to_timestamp),
        })
        .collect()
}
