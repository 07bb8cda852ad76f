"""The frame of the console in a real browser: sign-in, addresses, loss of the server, colours."""

from selenium.webdriver.support.ui import Select

from browser import needs_chromium
from console.conftest import needs_console
from console.console_server import run_console

pytestmark = [needs_chromium, needs_console]


def test_a_browser_without_a_credential_gets_instructions(other_page, server):
    other_page.open("")
    other_page.wait_for("main", "standfast serve")
    assert other_page.find_all("nav") == []
    other_page.sign_in(server.create_key("vera", "viewer"))
    other_page.wait_for(".side-footer", "viewer")
    other_page.open("#/approvals")
    other_page.wait_for("main", "needs the role approver")
    other_page.open("#/approvals/unknown")
    other_page.wait_for("[role=alert]", "unknown")


def test_addresses_lead_to_views_and_back(page):
    page.open("#/approvals")
    page.wait_for("h1", "Approvals")
    page.open("#/nothing/here")
    page.wait_for("main", "no such page")
    page.driver.back()
    page.wait_for("h1", "Approvals")


def test_the_numbers_of_the_overview_lead_to_what_they_count(page, server, request):
    run_id = server.start_run("refund order 7", request.node.originalname)
    page.open("#/")
    page.wait_for(".figure.urgent", "approvals wait")
    page.wait_for(".latest", run_id)
    page.wait_for(".facts", "answers in")
    page.take_pictures("overview")
    found = page.list_violations()
    page.click(".figure", "runs waiting")
    page.wait_for("td a", run_id)
    assert found == []


def test_a_key_is_created_shown_once_and_revoked(page, server):
    page.open("#/settings")
    page.click("summary", "Create a key")
    for field, text in (("label:nth-child(1) input", "night shift"), ("label:nth-child(2) input", "ops")):
        page.fill(f"details[open] {field}", text)
    page.click("details[open] button", "Create")
    secret = page.wait_for("[role=status] .code").text
    assert server.http.get("/info", headers={"authorization": f"Bearer {secret}"}).json()["owner"] == "ops"
    page.wait_for("td", "night shift")
    page.take_pictures("settings")
    found = page.list_violations()
    page.click("tr:has(td) button", "Revoke")
    page.driver.switch_to.alert.accept()
    page.wait_for("td", "revoked")
    page.driver.refresh()
    page.wait_for(".audit", "key revoked")
    assert secret not in page.driver.page_source
    assert found == []


def test_the_colours_are_those_of_the_system_or_the_chosen_ones(page):
    read = "return getComputedStyle(document.documentElement).backgroundColor"
    page.resize((1280, 800), "dark")
    dark = page.driver.execute_script(read)
    page.resize((1280, 800), "light")
    light = page.driver.execute_script(read)
    assert dark != light
    Select(page.find(".theme select")).select_by_value("dark")
    assert page.driver.execute_script(read) == dark
    page.driver.refresh()
    page.wait_for("nav")
    assert page.driver.execute_script(read) == dark
    Select(page.find(".theme select")).select_by_value("system")
    assert page.driver.execute_script(read) == light


def test_a_page_survives_a_killed_server_without_a_reload(page, tmp_path):
    with run_console(f"sqlite:///{tmp_path / 'other.db'}") as server:
        page.server = server
        page.sign_in()
        page.click("nav a", "Approvals")
        page.wait_for("main", "Nothing waits")
        page.driver.execute_script("window.isSamePage = true")
        server.kill()
        page.wait_for(".banner", "does not answer")
        server.start()
        page.wait_until_gone(".banner")
        server.start_run("refund order 7", "restarted")
        page.wait_for(".row", "refund")
        assert page.driver.execute_script("return window.isSamePage")
        page.driver.get("about:blank")
