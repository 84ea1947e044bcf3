-- A session in Neovim: open a file, see what is found, take an action from the menu, save.
-- Arguments come in the environment, what was seen goes to standard output as JSON.

local file, title, only = vim.env.SESSION_FILE, vim.env.SESSION_TITLE, vim.env.SESSION_ONLY
local seen = { titles = {} }

local function finish(problem)
  io.stdout:write((problem or vim.fn.json_encode(seen)) .. "\n")
  vim.cmd(problem and "cquit!" or "qall!")
end

local function wait(what, condition)
  if not vim.wait(60000, condition, 20) then
    finish("timed out: " .. what)
  end
end

local function main()
  vim.cmd("source " .. vim.fn.fnameescape(vim.env.SESSION_CONFIGURATION))
  vim.cmd("edit " .. vim.fn.fnameescape(file))
  wait("diagnostics", function()
    return #vim.diagnostic.get(0) > 0
  end)
  seen.found = vim.tbl_map(function(d)
    return { d.lnum + 1, d.col, d.user_data.lsp.code .. " " .. d.message }
  end, vim.diagnostic.get(0))

  vim.ui.select = function(items, options, choose)
    local chosen
    for _, item in ipairs(items) do
      local shown = options.format_item(item)
      table.insert(seen.titles, shown)
      if not chosen and shown:find(title, 1, true) then
        chosen = item
      end
    end
    choose(chosen)
  end
  local before = vim.api.nvim_buf_get_changedtick(0)
  local first = vim.diagnostic.get(0)[1]
  vim.api.nvim_win_set_cursor(0, { first.lnum + 1, first.col })
  local context = only and { only = { only } } or {}
  vim.lsp.buf.code_action(vim.fn.has("nvim-0.8") == 1 and { context = context } or context)
  wait("the edit of " .. title, function()
    return vim.api.nvim_buf_get_changedtick(0) > before
  end)
  wait("no diagnostics", function()
    return #vim.diagnostic.get(0) == 0
  end)
  vim.cmd("write")
  finish()
end

local fine, problem = xpcall(main, debug.traceback)
if not fine then
  finish(problem)
end
