//! The OpenAPI document, made from the table of routes: what it says of paths, parameters and statuses is what is done.

use profile_files::FORMATS;
use serde_json::{Map, Value, json};

use super::guard::Needs;
use super::params::{Parameter, ParameterKind};
use super::problem::PROBLEM_JSON;
use super::routes::{Operation, ROUTES, Route};

/// The shapes of what is sent and answered.
const SCHEMAS: &str = include_str!("schemas.json");

/// The document.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for route in &ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "sweetspot",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "A sampling profiler that chooses its own rate.",
            "description": "On the Unix socket, its mode and group decide who has access; over the network, \
                            the token does.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "metrics_token": { "type": "http", "scheme": "bearer" },
            },
        },
    })
}

/// The shapes. The file is part of the program, and a test reads it.
pub(super) fn schemas() -> Value {
    serde_json::from_str(SCHEMAS).unwrap_or_default()
}

fn operation(route: &Route) -> Value {
    let mut parameters: Vec<Value> = route.parameters.iter().map(|parameter| query(parameter)).collect();
    if route.path.contains("{name}") {
        parameters.push(json!({
            "name": "name",
            "in": "path",
            "required": true,
            "description": "The target.",
            "schema": { "type": "string", "pattern": "^[A-Za-z0-9._@:-]{1,256}$" },
        }));
    }
    let responses: Map<String, Value> =
        route.statuses().into_iter().map(|status| (status.to_string(), response(route, status))).collect();
    let mut operation = json!({
        "operationId": id(route.operation),
        "summary": route.summary,
        "parameters": parameters,
        "responses": responses,
        "security": match route.needs() {
            Needs::Nothing => json!([]),
            Needs::MetricsToken => json!([{ "token": [] }, { "metrics_token": [] }]),
            Needs::Token => json!([{ "token": [] }]),
        },
    });
    if let Some(schema) = route.body {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": reference(schema) } } });
    }
    operation
}

fn id(operation: Operation) -> String {
    let name = format!("{operation:?}");
    let (first, rest) = name.split_at(1);
    first.to_ascii_lowercase() + rest
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn query(parameter: &Parameter) -> Value {
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    let one = match parameter.kind {
        ParameterKind::Moment => {
            json!({ "type": "string", "format": "moment", "examples": ["-1h", "09:30", "2026-11-22T09:30Z", "1760000000"] })
        }
        ParameterKind::Seconds => json!({ "type": "integer", "minimum": 1, "maximum": 3600 }),
        ParameterKind::Target => text("^[^\\x00-\\x1f\\x7f-\\x9f]*$"),
        ParameterKind::Label => text("^[^=\\x00-\\x1f\\x7f-\\x9f]+=[^\\x00-\\x1f\\x7f-\\x9f]*$"),
        ParameterKind::Format => json!({ "type": "string", "enum": FORMATS.map(|format| format.name) }),
    };
    let schema = if parameter.kind.is_repeated() {
        json!({ "type": "array", "items": one, "maxItems": 100 })
    } else {
        one
    };
    json!({
        "name": parameter.name,
        "in": "query",
        "required": false,
        "description": description(parameter),
        "schema": schema,
    })
}

fn description(parameter: &Parameter) -> String {
    match parameter.kind {
        ParameterKind::Format => {
            let formats = FORMATS.map(|format| format!("{format} ({})", format.about));
            format!("{} One of {}.", parameter.doc, formats.join(", "))
        }
        _ => parameter.doc.to_owned(),
    }
}

fn response(route: &Route, status: u16) -> Value {
    if status != route.answer.status {
        return json!({
            "description": problem(status),
            "content": { PROBLEM_JSON: { "schema": reference("Problem") } },
        });
    }
    let contents: Map<String, Value> = route
        .contents()
        .into_iter()
        .map(|(kind, schema)| {
            let schema = schema.map_or_else(|| json!({}), |schema| json!({ "schema": reference(schema) }));
            (kind.to_owned(), schema)
        })
        .collect();
    if contents.is_empty() {
        json!({ "description": "Done." })
    } else {
        json!({ "description": "The answer.", "content": contents })
    }
}

/// What a status of a problem means here.
fn problem(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid.",
        401 => "The token is missing or wrong.",
        403 => "The request comes from a browser page, or from a user without access.",
        404 => "There is nothing of this name, or nothing was kept.",
        408 => "The body took too long.",
        409 => "It contradicts the settings, or what is there.",
        413 => "The body is too long.",
        415 => "The body is not JSON.",
        421 => "The request names another host.",
        422 => "The request is valid but cannot be carried out.",
        429 => "Too many requests at once.",
        503 => "The daemon's loop does not respond, or is not ready.",
        _ => "An internal error.",
    }
}
